// What the engine runs: a kernel prepared for one problem, whatever kind of binary it came from.
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

// Something went wrong that names its cause; Python sees EngineError.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The kernel cannot solve this problem; Python sees RefusedError.
struct Refused : Error {
  using Error::Error;
};

// A kernel with all its addresses: only the stream is still to be told.
struct Launch {
  virtual ~Launch() = default;

  // Enqueues the kernel on `stream`; a CPU kernel ignores it and returns when it is done. The kernel's context is
  // current. overlap: it may be placed on the GPU while the kernel before it in the stream ends, if it is one that
  // waits for what it reads. Thread-safe; allocates nothing; does not synchronize.
  virtual void run(void* stream, bool overlap) const = 0;
};

struct Prepared {
  virtual ~Prepared() = default;

  // As Launch::run, with the addresses told now.
  virtual void launch(const at_pointers& pointers, void* stream, bool overlap) const = 0;

  // All that can be done once for addresses that stay; it must not outlive the kernel.
  virtual std::unique_ptr<const Launch> settle(const at_pointers& pointers) const = 0;

  // The context that must be current when it is launched; none for a CPU kernel.
  virtual void* context() const { return nullptr; }

  // One line for people: grid, threads, shared memory, registers.
  virtual std::string describe() const = 0;

  int64_t workspace_bytes = 0;
};

// Addresses by number. Their maker says those that stay; a run gives the others, which are the first ones or all.
using Slots = std::vector<std::optional<int64_t>>;
using Given = std::vector<int64_t>;

// The operands of a kernel in a program or a graph: each an address, or -1 - i for the i-th slot.
class Operands {
 public:
  Operands(const std::vector<int64_t>& pointers, const Slots& slots);

  // Whether no address depends on the run.
  bool settled() const { return late_.empty(); }

  // The addresses; throws Error if the run does not give all that it has to.
  at_pointers with(const Given& given) const;

  // Whether two runs give other addresses, or one of them does not give all.
  bool differ(const Given& one, const Given& other) const;

 private:
  at_pointers pointers_{};
  std::vector<std::pair<size_t, size_t>> late_;  // which pointer is which slot
};

}  // namespace engine
