#include "program.h"

#include "driver.h"

namespace engine {

void Program::add(std::shared_ptr<Prepared> kernel, const std::vector<int64_t>& pointers, bool overlap) {
  if (!steps_.empty() && steps_.front().kernel->context() != kernel->context())
    throw Error("all kernels of a program run on one device");
  Operands operands(pointers, slots_);
  auto frozen = operands.is_fixed() ? kernel->freeze(operands.with({})) : nullptr;
  steps_.push_back({std::move(kernel), std::move(operands), std::move(frozen), overlap});
}

void Program::run(void* stream, const SlotAddresses& given) const {
  std::optional<cuda::ContextScope> scope;
  if (!steps_.empty() && steps_.front().kernel->context()) scope.emplace(steps_.front().kernel->context());
  for (const Step& step : steps_) {
    if (step.frozen) step.frozen->run(stream, step.overlap);
    else step.kernel->launch(step.operands.with(given), stream, step.overlap);
  }
}

}  // namespace engine
