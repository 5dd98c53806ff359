// A kernel prepared for one problem, from a device image or a shared library.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "abi.h"

namespace engine {

// An error with its cause; Python sees EngineError.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The kernel cannot solve this problem; Python sees RefusedError.
struct Refused : Error {
  using Error::Error;
};

// A kernel with all its addresses; only the stream is given at the launch.
struct Launch {
  virtual ~Launch() = default;

  // Enqueues the kernel on `stream`; a CPU kernel ignores the stream and returns when it is done. The caller has made
  // the kernel's context current. overlap: the kernel may start while its predecessor in the stream ends, if it waits
  // for its inputs by itself. Thread-safe; allocates nothing; does not synchronize.
  virtual void run(void* stream, bool overlap) const = 0;
};

struct Prepared {
  virtual ~Prepared() = default;

  // Enqueues the kernel with these addresses: see Launch::run.
  virtual void launch(const at_pointers& pointers, void* stream, bool overlap) const = 0;

  // Returns a launch with fixed addresses: work that depends on them is done once. It must not outlive the kernel.
  virtual std::unique_ptr<const Launch> freeze(const at_pointers& pointers) const = 0;

  // The CUDA context that must be current at a launch; null for a CPU kernel.
  virtual void* context() const { return nullptr; }

  // Returns a readable line: grid, threads, shared memory, registers.
  virtual std::string describe() const = 0;

  int64_t workspace_bytes = 0;
};

// Addresses of tensors by slot. Slots with an address are fixed when a program or graph is made; a run gives the
// addresses of the others, which are the first slots or all of them.
using Slots = std::vector<std::optional<int64_t>>;
using SlotAddresses = std::vector<int64_t>;

// The operands of a kernel in a program or a graph: each an address, or -1 - i for the i-th slot.
class Operands {
 public:
  Operands(const std::vector<int64_t>& pointers, const Slots& slots);

  // Returns whether no address depends on the run.
  bool is_fixed() const { return from_slots_.empty(); }

  // Returns the addresses; throws Error if the run gives too few.
  at_pointers with(const SlotAddresses& given) const;

  // Returns whether two runs differ in an address, or one of them gives too few.
  bool differ(const SlotAddresses& one, const SlotAddresses& other) const;

 private:
  at_pointers pointers_{};
  std::vector<std::pair<size_t, size_t>> from_slots_;  // (index of a pointer, its slot)
};

}  // namespace engine
