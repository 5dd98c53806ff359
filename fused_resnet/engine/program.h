// A list of prepared kernels with their pointers, run in one call.
#pragma once
#include <memory>
#include <vector>

#include "kernel.h"

namespace engine {

class Program {
 public:
  explicit Program(Slots slots) : slots_(std::move(slots)) {}

  void add(std::shared_ptr<Prepared> kernel, const Pointers& pointers);

  // Enqueues all kernels in order. Thread-safe, as far as the tensors behind the pointers are.
  void run(void* stream, const Slots& given) const;

  size_t size() const { return steps_.size(); }

 private:
  struct Step {
    std::shared_ptr<Prepared> kernel;
    Pointers pointers;
  };
  std::vector<Step> steps_;
  Slots slots_;
};

}  // namespace engine
