// What the engine runs: a kernel prepared for one problem, whatever kind of binary it came from.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
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

struct Prepared {
  virtual ~Prepared() = default;

  // Enqueues the kernel on `stream`; a CPU kernel ignores it and returns when it is done. Thread-safe; allocates
  // nothing; does not synchronize.
  virtual void launch(const at_pointers& pointers, void* stream) const = 0;

  // One line for people: grid, threads, shared memory, registers.
  virtual std::string describe() const = 0;

  int64_t workspace_bytes = 0;
};

// Pointers as a plan gives them: addresses, or -1 - i for the i-th slot.
using Pointers = std::vector<int64_t>;

// Addresses of the slots. Whatever runs kernels has them from its maker; a run gives the first few anew.
using Slots = std::vector<int64_t>;

at_pointers resolve(const Pointers& pointers, const Slots& slots);

// `slots` with the first ones replaced by those of a run.
Slots with_first(Slots slots, const Slots& given);

}  // namespace engine
