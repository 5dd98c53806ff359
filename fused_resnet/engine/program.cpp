#include "program.h"

#include <algorithm>

namespace engine {

at_pointers resolve(const Pointers& pointers, const Slots& slots) {
  at_pointers resolved{};
  for (size_t i = 0; i < pointers.size(); ++i)
    resolved.p[i] = reinterpret_cast<void*>(pointers[i] < 0 ? slots.at(-1 - pointers[i]) : pointers[i]);
  return resolved;
}

Slots with_first(Slots slots, const Slots& given) {
  if (slots.size() < given.size()) slots.resize(given.size());
  std::copy(given.begin(), given.end(), slots.begin());
  return slots;
}

void Program::add(std::shared_ptr<Prepared> kernel, const Pointers& pointers) {
  if (pointers.size() > AT_MAX_POINTERS) throw Error("a kernel takes at most 16 pointers");
  steps_.push_back({std::move(kernel), pointers});
}

void Program::run(void* stream, const Slots& given) const {
  const Slots slots = with_first(slots_, given);
  for (const Step& step : steps_) step.kernel->launch(resolve(step.pointers, slots), stream);
}

}  // namespace engine
