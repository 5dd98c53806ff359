// A list of prepared kernels with their operands, run in one call.
#pragma once
#include <memory>
#include <vector>

#include "kernel.h"

namespace engine {

class Program {
 public:
  explicit Program(Slots slots) : slots_(std::move(slots)) {}

  // Adds a kernel. All kernels of a program run on one device. overlap: see Launch::run.
  void add(std::shared_ptr<Prepared> kernel, const std::vector<int64_t>& pointers, bool overlap);

  // Enqueues all kernels in order. Thread-safe if the tensors are: it changes nothing. It takes no lock, because the
  // child of a fork might find the lock held.
  void run(void* stream, const SlotAddresses& given) const;

  size_t size() const { return steps_.size(); }

 private:
  struct Step {
    std::shared_ptr<Prepared> kernel;
    Operands operands;
    std::unique_ptr<const Launch> frozen;  // null if a run gives an operand
    bool overlap;
  };
  std::vector<Step> steps_;
  Slots slots_;
};

}  // namespace engine
