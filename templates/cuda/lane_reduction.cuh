// Sums and maxima over the threads of a block that share a row.
#pragma once

namespace at {

struct Sum {
  static constexpr float kStart = 0.f;
  AT_DEVICE static float combine(float a, float b) { return a + b; }
};

struct Maximum {
  static constexpr float kStart = -3.402823466e38f;
  AT_DEVICE static float combine(float a, float b) { return fmaxf(a, b); }
};

// Combines the values of `Lanes` neighbouring threads, a power of two up to 32; all of them receive the result. Every
// thread of the warp must call it.
template <typename Operation, int Lanes>
AT_DEVICE float over_lanes(float v) {
  AT_UNROLL for (int distance = Lanes / 2; distance; distance /= 2)
    v = Operation::combine(v, __shfl_xor_sync(0xffffffffu, v, distance));
  return v;
}

// The same for a power of two of more than 32 threads, through `parts`: shared memory of one float for each warp of the
// block, which no earlier call has used. Every thread of the block must call it. The order of additions is fixed.
template <typename Operation, int Lanes>
AT_DEVICE float over_threads(float v, float* parts) {
  if constexpr (Lanes <= 32) {
    return over_lanes<Operation, Lanes>(v);
  } else {
    v = over_lanes<Operation, 32>(v);
    const int warp = threadIdx.x / 32, first = threadIdx.x / Lanes * (Lanes / 32);
    if (threadIdx.x % 32 == 0) parts[warp] = v;
    __syncthreads();
    v = Operation::kStart;
    AT_UNROLL for (int i = 0; i < Lanes / 32; ++i)
      v = Operation::combine(v, parts[first + i]);
    return v;
  }
}

}  // namespace at
