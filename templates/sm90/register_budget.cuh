// The registers of a thread after setmaxnreg, by role: producers load, consumers multiply.
#pragma once
#include "common/ptx/registers.cuh"

namespace at {

constexpr int kSmRegisters = 65536;

// kProducer and kConsumer: registers of a thread of each role.
template <int kProducerThreads, int kConsumerThreads, int kProducer, int kConsumer>
struct RegisterBudget {
  static_assert(kProducer % 8 == 0 && kConsumer % 8 == 0 && kProducer >= 24 && kConsumer <= 256,
                "setmaxnreg takes multiples of 8 from 24 to 256");
  static_assert(kProducerThreads % 128 == 0 && kConsumerThreads % 128 == 0, "setmaxnreg is for whole warpgroups");
  static_assert(kProducerThreads * kProducer + kConsumerThreads * kConsumer <= kSmRegisters,
                "a block needs more registers than an SM has");
  AT_DEVICE static void to_producer() { ptx::warpgroup_reg_dealloc<kProducer>(); }
  AT_DEVICE static void to_consumer() { ptx::warpgroup_reg_alloc<kConsumer>(); }
};

}  // namespace at
