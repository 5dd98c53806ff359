#include "program.h"

namespace engine {

void Program::add(std::shared_ptr<Prepared> kernel, const std::vector<int64_t>& pointers, bool dependent) {
  if (pointers.size() > AT_MAX_POINTERS) throw Error("a kernel takes at most 16 pointers");
  steps_.push_back({std::move(kernel), pointers, dependent});
}

void Program::run(void* stream, const std::vector<int64_t>& slots) const {
  for (const Step& step : steps_) {
    at_pointers pointers{};
    for (size_t i = 0; i < step.pointers.size(); ++i) {
      const int64_t value = step.pointers[i];
      pointers.p[i] = reinterpret_cast<void*>(value < 0 ? slots.at(-1 - value) : value);
    }
    step.kernel->launch(pointers, stream, step.dependent);
  }
}

}  // namespace engine
