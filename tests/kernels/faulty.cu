// Faulty GPU kernels for avg_pool2d in float32, each with another fault, and one correct kernel.
#include <assert.h>

#include "cuda/kernel.cuh"

namespace {

using Params = at::Plain<at_pool2d>;
constexpr int kThreads = 128;

AT_DEVICE int64_t outputs(const Params& params) {
  const at_pool2d& a = params.a;
  return (int64_t)a.n * a.p * a.q * a.c;
}

AT_DEVICE int64_t thread() { return (int64_t)blockIdx.x * kThreads + threadIdx.x; }
AT_DEVICE float* input(const Params& params) { return (float*)params.p.p[0]; }
AT_DEVICE float* output(const Params& params) { return (float*)params.p.p[1]; }
AT_DEVICE bool is_last(const Params& params) { return thread() == outputs(params) - 1; }

// Computes every output except `missing`; one thread per output.
AT_DEVICE void pool(const Params& params, int64_t missing = -1) {
  const at_pool2d& a = params.a;
  const int64_t o = thread();
  if (o >= outputs(params) || o == missing) return;
  const int c = o % a.c, j = o / a.c % a.q, i = o / a.c / a.q % a.p, n = o / a.c / a.q / a.p;
  float sum = 0.f;
  for (int r = 0; r < a.r; ++r)
    for (int s = 0; s < a.s; ++s) {
      const int h = i * a.stride_h - a.pad_h + r, w = j * a.stride_w - a.pad_w + s;
      if (h >= 0 && h < a.h && w >= 0 && w < a.w) sum += input(params)[(((int64_t)n * a.h + h) * a.w + w) * a.c + c];
    }
  output(params)[o] = sum / (a.r * a.s);
}

// Counts calls. If one thread calls it per launch, it numbers the launches from 0.
AT_DEVICE int count(int* counter) { return atomicAdd(counter, 1); }

__device__ int jitters_calls, tires_calls, strays_calls;

struct good {
  static AT_DEVICE void run(const Params& params) { pool(params); }
};
struct does_nothing {
  static AT_DEVICE void run(const Params&) {}
};
struct scaled {
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    if (thread() < outputs(params)) output(params)[thread()] *= 1.001f;
  }
};
struct one_missing {
  static AT_DEVICE void run(const Params& params) { pool(params, outputs(params) / 2); }
};
struct one_wrong {
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    if (is_last(params)) output(params)[thread()] += 0.5f;
  }
};
struct writes_behind {
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    if (is_last(params)) output(params)[thread() + 1] = 0.f;
  }
};
struct writes_before {
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    if (thread() == 0) output(params)[-1] = 0.f;
  }
};
struct writes_input {  // in the last thread, so most likely after the other reads
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    if (is_last(params)) input(params)[0] = 7.f;
  }
};
struct writes_far {
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    if (thread() == 0) ((volatile float*)output(params))[1ll << 40] = 0.f;
  }
};
struct misaligned {
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    if (thread() == 0) *(volatile float*)((char*)output(params) + 1) = 0.f;
  }
};
struct loops {
  static AT_DEVICE void run(const Params& params) {
    while (*(volatile float*)input(params) != 1e30f) {
    }
    pool(params);
  }
};
struct traps {
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    if (thread() == 0) __trap();
  }
};
struct made_up {  // different wrong results in each launch
  static AT_DEVICE void run(const Params& params) {
    if (thread() < outputs(params)) output(params)[thread()] = (unsigned)(clock64() * 2654435761u) * 0x1p-31f - 1.f;
  }
};
struct jitters {  // within tolerance, but different bits in each launch
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    if (is_last(params)) {
      float* last = output(params) + thread();
      *last = __int_as_float(__float_as_int(*last) + count(&jitters_calls) % 7);
    }
  }
};
struct tires {  // wrong from the tenth launch on
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    if (is_last(params) && count(&tires_calls) >= 9) output(params)[thread()] += 0.25f;
  }
};
struct strays {  // writes its input from the tenth launch on
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    if (is_last(params) && count(&strays_calls) >= 9) input(params)[0] = 7.f;
  }
};
struct keeps_largest {  // NaN poison is not visible in the result: fmaxf drops NaN
  static AT_DEVICE void run(const Params& params) {
    const bool inside = thread() < outputs(params);
    const float before = inside ? output(params)[thread()] : 0.f;
    pool(params);
    if (inside) output(params)[thread()] = fmaxf(output(params)[thread()], before);
  }
};
struct trusts_workspace {  // correct only in the first launch: it does not restore the zeros
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    float* sum = (float*)params.p.p[AT_WORKSPACE];
    if (is_last(params)) output(params)[thread()] += *sum, *sum += 0.5f;
  }
};
struct leaks {  // device malloc returns null when the device's heap is exhausted
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    if (is_last(params)) {
      volatile float* copy = (volatile float*)malloc(1 << 17);
      *copy = output(params)[thread()];
    }
  }
};

struct races {  // reads from shared memory what another warp writes, without a barrier between
  static AT_DEVICE void run(const Params& params) {
    pool(params);
    __shared__ volatile float values[kThreads];
    values[threadIdx.x] = 1.f;
    if (values[kThreads - 1 - threadIdx.x] < 0.f) output(params)[0] = 0.f;
  }
};
struct ends_late {  // correct; lets the next kernel start long before it writes, which must wait for it
  static AT_DEVICE void run(const Params& params) {
    at::launch_dependents();
    for (const long long start = clock64(); clock64() - start < 200000;) {
    }
    pool(params);
  }
};
struct diverges {  // the warps meet at two barriers
  static AT_DEVICE void run(const Params& params) {
    if (threadIdx.x < 64) {
      __syncthreads();
      pool(params);
    } else {
      pool(params);
      __syncthreads();
    }
  }
};

template <typename Fault>
AT_DEVICE void prepare(const at_pool2d& a, at_prepared* out, int workspace_bytes) {
  const int64_t count = (int64_t)a.n * a.p * a.q * a.c;
  at::prepared(out, Params{a, {}}, (int)at::ceil_div(count, kThreads), 1, 1, kThreads, 0, workspace_bytes);
}

}  // namespace

#define FAULT(name)                                                                                  \
  extern "C" __global__ void at_##name(const __grid_constant__ Params params) { name::run(params); } \
  extern "C" __global__ void at_##name##_prepare(at_pool2d a, at_prepared* out) { prepare<name>(a, out, 4); }

FAULT(good)
FAULT(does_nothing)
FAULT(scaled)
FAULT(one_missing)
FAULT(one_wrong)
FAULT(writes_behind)
FAULT(writes_before)
FAULT(writes_input)
FAULT(writes_far)
FAULT(misaligned)
FAULT(loops)
FAULT(traps)
FAULT(made_up)
FAULT(jitters)
FAULT(tires)
FAULT(strays)
FAULT(keeps_largest)
FAULT(trusts_workspace)
FAULT(leaks)
FAULT(races)
FAULT(ends_late)
FAULT(diverges)

extern "C" __global__ void at_refuses(const __grid_constant__ Params params) { good::run(params); }
extern "C" __global__ void at_refuses_prepare(at_pool2d, at_prepared* out) { at::refused(out, "c=7 is not supported"); }

extern "C" __global__ void at_asks_too_much(const __grid_constant__ Params params) { good::run(params); }
extern "C" __global__ void at_asks_too_much_prepare(at_pool2d a, at_prepared* out) {
  prepare<good>(a, out, 0);
  out->shared_bytes = 1 << 20;
}

extern "C" __global__ void at_has_no_blocks(const __grid_constant__ Params params) { good::run(params); }
extern "C" __global__ void at_has_no_blocks_prepare(at_pool2d a, at_prepared* out) {
  prepare<good>(a, out, 0);
  out->grid[0] = 0;
}
