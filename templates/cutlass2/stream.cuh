// Matrix products of CUTLASS 2.x main loops, whose steps along K are dealt to the thread blocks by a Schedule.
//
// A block that has only a part of a tile's steps leaves its sums in the workspace, and whichever block leaves them last
// adds them up, in the order of the steps: the same input gives the same bits, and no block waits for another.
#pragma once
#include "cutlass2/implicit_gemm.cuh"
#include "cutlass2/schedule.h"

namespace at {

// Work says what is multiplied:
//   Mma, Existing             CUTLASS's main loop and epilogue
//   Params                    what the iterators need
//   prepare(a, params, tiles_m, tiles_n, steps)   false if it cannot solve the problem
//   accumulate(params, p, shared, m, n, first, steps, accumulators)   some steps of a tile; p: Problem.operands()
//   place(params, m)          where a tile's sums go, for StepEpilogue
template <typename Work, typename Element, typename Steps, typename Launch>
struct Streamed {
  using Mma = typename Work::Mma;
  using Shape = typename Mma::Shape;
  using Epilogue = StepEpilogue<typename Work::Existing, Element, Steps>;
  using Accumulators = typename Mma::FragmentC;
  static int const kThreads = 32 * Mma::WarpCount::kCount;
  static int const kWords = Accumulators::kElements / 4;  // of four partial sums

  union SharedStorage {
    typename Mma::SharedStorage main_loop;
    typename Epilogue::SharedStorage epilogue;
    int arrivals;
  };

  struct Params {
    typename Work::Params work;
    Schedule schedule;
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // Launch values: swizzle, the log2 of its width; slices of each tile; stream, the blocks of stream-K per
  // multiprocessor.
  CUTLASS_DEVICE static void prepare(at_conv2d const& a, at_prepared* out) {
    Params params;
    Schedule& schedule = params.schedule;
    if (char const* reason = Work::why_refused(a)) return refused(out, reason);
    Work::prepare(a, params.work, schedule.tiles_m, schedule.tiles_n, schedule.steps);
    schedule.swizzle = a.launch[Launch::kSwizzle];
    if (!schedule.deal(a.launch[Launch::kSlices], a.launch[Launch::kStream] * processors()))
      return refused(out, "slices must be between 1 and the steps of a tile, and 1 with stream-K");
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.scalars[i] = a.scalars[i];
    int64_t const partials = (int64_t)schedule.blocks * schedule.slots * kWords * kThreads * sizeof(float4);
    int64_t const workspace = schedule.streamed ? counters_bytes(schedule) + partials : 0;
    prepared(out, params, schedule.blocks, 1, 1, kThreads, sizeof(SharedStorage), workspace);
  }

  CUTLASS_DEVICE static void run(Params const& params, SharedStorage& shared) {
    Schedule const& schedule = params.schedule;
    int const thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync(), lane = thread % 32;
    int64_t step = schedule.first_step(blockIdx.x);
    int64_t const end = schedule.first_step(blockIdx.x + 1);
    int wave = 0;
    griddepcontrol_wait();
    while (step < end || wave < schedule.waves) {
      int tile, first = 0, steps = schedule.steps;
      if (step < end) {
        tile = step / schedule.steps;
        first = step - (int64_t)tile * schedule.steps;
        steps = end - step < steps - first ? end - step : steps - first;
        step += steps;
      } else {
        tile = schedule.streamed + wave++ * schedule.blocks + blockIdx.x;
      }
      int m, n;
      schedule.coordinates(tile, m, n);

      __syncthreads();  // the last tile's epilogue may still be reading
      Accumulators accumulators;
      accumulators.clear();
      Work::accumulate(params.work, params.p.p, shared.main_loop, m, n, first, steps, accumulators);
      if (step >= end && wave == schedule.waves) launch_dependents();

      if (steps < schedule.steps && !gather(params, tile, accumulators, shared.arrivals)) continue;
      Epilogue epilogue(shared.epilogue, m * Shape::kM, n * Shape::kN, thread, warp, lane);
      epilogue(accumulators, params.p.p, params.scalars, Work::place(params.work, m));
    }
  }

 private:
  CUTLASS_DEVICE static int processors() {
    int count;
    asm("mov.u32 %0, %%nsmid;" : "=r"(count));
    return count;
  }

  CUTLASS_DEVICE static int64_t counters_bytes(Schedule const& schedule) {
    return ((int64_t)schedule.streamed * 4 + 255) / 256 * 256;
  }

  // Leaves this block's part of a tile in the workspace; returns true, with the total, in the block that is last.
  // The tile's counter is left at zero.
  CUTLASS_DEVICE static bool gather(Params const& params, int tile, Accumulators& accumulators, int& arrivals) {
    static_assert(Accumulators::kElements % 4 == 0, "partial sums are moved four at a time");
    Schedule const& schedule = params.schedule;
    int const thread = threadIdx.x, block = blockIdx.x;
    int const from = schedule.owner((int64_t)tile * schedule.steps);
    int const to = schedule.owner((int64_t)(tile + 1) * schedule.steps - 1);
    char* workspace = (char*)params.p.p[AT_WORKSPACE];
    int* counter = (int*)workspace + tile;
    float4* partials = (float4*)(workspace + counters_bytes(schedule)) + thread;
    float4* mine = reinterpret_cast<float4*>(&accumulators);
    float4* left = partials + schedule.slot(block, tile) * kWords * kThreads;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kWords; ++i) left[i * kThreads] = mine[i];
    __threadfence();
    __syncthreads();
    if (thread == 0) arrivals = atomicAdd(counter, 1);
    __syncthreads();
    bool const last = arrivals == to - from;
    if (!last) return false;
    __threadfence();
    if (thread == 0) *counter = 0;
    __syncthreads();  // all have read the arrivals, and the epilogue writes there
    accumulators.clear();
    for (int other = from; other <= to; ++other) {
      float4 const* part = partials + schedule.slot(other, tile) * kWords * kThreads;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWords; ++i) {
        float4 const word = __ldcg(part + i * kThreads);
        mine[i].x += word.x;
        mine[i].y += word.y;
        mine[i].z += word.z;
        mine[i].w += word.w;
      }
    }
    return true;
  }
};

}  // namespace at
