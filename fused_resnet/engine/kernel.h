// What the engine runs: a kernel prepared for one problem, whatever kind of binary it came from.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

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

  // Enqueues the kernel on `stream` (ignored by CPU kernels). `dependent` lets it start while the kernel before it
  // in the stream ends: programmatic dependent launch. Thread-safe; allocates nothing; does not synchronize.
  virtual void launch(const at_pointers& pointers, void* stream, bool dependent) const = 0;

  // One line for people: grid, threads, shared memory, registers.
  virtual std::string describe() const = 0;

  int64_t workspace_bytes = 0;
};

}  // namespace engine
