// A list of prepared kernels with their pointers, run in one call.
#pragma once
#include <memory>
#include <vector>

#include "kernel.h"

namespace engine {

class Program {
 public:
  void add(std::shared_ptr<Prepared> kernel, const Pointers& pointers);

  // Enqueues all kernels in order. Thread-safe.
  void run(void* stream, const std::vector<int64_t>& slots) const;

  size_t size() const { return steps_.size(); }

 private:
  struct Step {
    std::shared_ptr<Prepared> kernel;
    Pointers pointers;
  };
  std::vector<Step> steps_;
};

}  // namespace engine
