// A list of prepared kernels with their operands, run in one call.
#pragma once
#include <memory>
#include <vector>

#include "kernel.h"

namespace engine {

class Program {
 public:
  explicit Program(Slots slots) : slots_(std::move(slots)) {}

  // All kernels of a program are of one device. overlap: as Launch::run has it.
  void add(std::shared_ptr<Prepared> kernel, const std::vector<int64_t>& pointers, bool overlap);

  // Enqueues all kernels in order. Thread-safe, as far as the tensors behind the pointers are: nothing is written, and
  // no lock is taken, which the child of a fork might find held.
  void run(void* stream, const Given& given) const;

  size_t size() const { return steps_.size(); }

 private:
  struct Step {
    std::shared_ptr<Prepared> kernel;
    Operands operands;
    std::unique_ptr<const Launch> settled;  // unless a run gives an operand
    bool overlap;
  };
  std::vector<Step> steps_;
  Slots slots_;
};

}  // namespace engine
