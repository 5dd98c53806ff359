// Reduces two values for each channel over all pixels: sums, or a mean and a sum of squared distances from it. The
// threads of a block combine theirs, the last block of a slab those of all blocks. The order of additions is fixed, so
// the same input gives the same bits.
#pragma once
#include "cuda/last_block.cuh"
#include "cuda/pixel_columns.cuh"

namespace at {

// Both results of neighbouring channels.
template <int N>
struct Partial {
  float first[N] = {}, second[N] = {};
};

// Moments: the results are the mean and the sum of squared distances from it. They are combined as sums of distances
// from one of the means: n (mean - start), and squares + n (mean - start)^2. All means are about the same, so nothing
// cancels, whatever the mean is, and there is no division for each pair of partial results.
template <typename Plan, bool Moments>
struct ColumnSums {
  static constexpr int kVector = Plan::kVector;
  static constexpr int kWarps = Plan::kThreads / 32;
  static constexpr int kRow = 2 * kVector + 1;  // floats of a thread in shared memory: odd, against bank conflicts
  static constexpr int kStarts = kWarps * Plan::kColumns * kRow;
  static constexpr int kFlag = kStarts + Plan::kColumns * kVector;
  static constexpr int kSharedBytes = (kFlag + 1) * (int)sizeof(float);
  using Part = Partial<kVector>;

  // The workspace: a counter for each slab, then both results of each split.
  AT_DEVICE static int64_t counter_bytes(int slabs) { return ceil_div(slabs * (int64_t)sizeof(int), 128) * 128; }
  AT_DEVICE static int64_t workspace_bytes(int c, int splits) {
    const int slabs = (int)ceil_div(c, Plan::kColumns * kVector);
    return splits > 1 ? counter_bytes(slabs) + (int64_t)splits * 2 * c * sizeof(float) : 0;
  }

  // Combines the threads' results of all pixels, and returns true in the threads that hold a total. Every thread of the
  // block must call it. count: the thread's pixels.
  AT_DEVICE static bool total(Part& part, int count, const Plan& plan, void* workspace) {
    float* const shared = (float*)at_shared;
    const bool owns = threadIdx.x < Plan::kColumns && plan.has_channels();
    float start[kVector] = {};
    if constexpr (Moments) {
      float* const starts = shared + kStarts + threadIdx.x % Plan::kColumns * kVector;
      AT_UNROLL for (int e = 0; e < kVector; ++e)
        if (threadIdx.x < Plan::kColumns) starts[e] = part.first[e];
      __syncthreads();
      AT_UNROLL for (int e = 0; e < kVector; ++e)
        start[e] = starts[e];
      const Part own = part;
      part = Part();
      add(part, own, start, (float)count);
    }
    over_block(part, shared);
    if constexpr (Moments) to_moments(part, start, plan.pixels_of(plan.split));
    if (plan.splits == 1) return owns;

    float* const parts = (float*)((char*)workspace + counter_bytes(plan.slabs)) + plan.channel;
    if (owns) {
      store(part.first, parts + (int64_t)plan.split * 2 * plan.c);
      store(part.second, parts + ((int64_t)plan.split * 2 + 1) * plan.c);
    }
    if (!is_last_block((int*)workspace + plan.slab, plan.splits, (int*)shared + kFlag)) return false;
    part = Part();
    if (plan.has_channels()) {
      if constexpr (Moments) load(start, parts);
      int split = plan.lane;
      for (; split + (kTogether - 1) * Plan::kLanes < plan.splits; split += kTogether * Plan::kLanes)
        add_splits<kTogether>(part, plan, parts, start, split);
      for (; split < plan.splits; split += Plan::kLanes) add_splits<1>(part, plan, parts, start, split);
    }
    over_block(part, shared);
    if constexpr (Moments) to_moments(part, start, plan.pixels);
    return owns;
  }

 private:
  // Splits whose loads are issued before the first is used. Kernels that compute moments have 64 registers a thread.
  static constexpr int kTogether = kVector < 8 ? 4 : Moments ? 1 : 2;

  // Adds the results of `Splits` blocks, from `split` on.
  template <int Splits>
  AT_DEVICE static void add_splits(Part& part, const Plan& plan, const float* parts, const float (&start)[kVector],
                                   int split) {
    Part others[Splits];
    AT_UNROLL for (int i = 0; i < Splits; ++i) {
      const float* const from = parts + (int64_t)(split + i * Plan::kLanes) * 2 * plan.c;
      load(others[i].first, from);
      load(others[i].second, from + plan.c);
    }
    AT_UNROLL for (int i = 0; i < Splits; ++i)
      add(part, others[i], start, Moments ? (float)plan.pixels_of(split + i * Plan::kLanes) : 0.f);
  }

  // Adds the results of `count` pixels.
  AT_DEVICE static void add(Part& to, const Part& other, const float (&start)[kVector], float count) {
    AT_UNROLL for (int e = 0; e < kVector; ++e) {
      const float distance = Moments ? count * (other.first[e] - start[e]) : other.first[e];
      to.first[e] += distance;
      to.second[e] += Moments ? other.second[e] + distance * (other.first[e] - start[e]) : other.second[e];
    }
  }

  // Converts sums of distances from `start`, and of their squares. No pixels have a mean of 0.
  AT_DEVICE static void to_moments(Part& part, const float (&start)[kVector], int count) {
    const float share = count ? 1.f / count : 0.f;
    AT_UNROLL for (int e = 0; e < kVector; ++e) {
      const float distance = part.first[e] * share;
      part.second[e] -= part.first[e] * distance;
      part.first[e] = start[e] + distance;
    }
  }

  // Adds up over the lanes of a block; the first `kColumns` threads receive the sums.
  AT_DEVICE static void over_block(Part& part, float* shared) {
    AT_UNROLL for (int distance = Plan::kColumns; distance < 32; distance *= 2) {
      AT_UNROLL for (int e = 0; e < kVector; ++e) {
        part.first[e] += __shfl_xor_sync(0xffffffffu, part.first[e], distance);
        part.second[e] += __shfl_xor_sync(0xffffffffu, part.second[e], distance);
      }
    }
    const int warp = threadIdx.x / 32, column = threadIdx.x % 32;
    if (warp && column < Plan::kColumns) {
      float* const to = shared + (warp * Plan::kColumns + column) * kRow;
      AT_UNROLL for (int e = 0; e < kVector; ++e)
        to[e] = part.first[e], to[kVector + e] = part.second[e];
    }
    __syncthreads();
    if (threadIdx.x >= Plan::kColumns) return;
    AT_NO_UNROLL for (int other = 1; other < kWarps; ++other) {
      const float* const from = shared + (other * Plan::kColumns + column) * kRow;
      AT_UNROLL for (int e = 0; e < kVector; ++e)
        part.first[e] += from[e], part.second[e] += from[kVector + e];
    }
  }
};

}  // namespace at
