// Implicit GEMMs with main loops of CUTLASS 2.x, whose steps along K are assigned to thread blocks by a Schedule.
//
// A block with a part of a tile's steps writes its sums to the workspace. The block that does so last adds them up in
// the order of the steps: the same input gives the same bits, and no block waits for another.
#pragma once
#include "cutlass2/implicit_gemm.cuh"
#include "cutlass2/schedule.h"

namespace at {

// Work defines the operands:
//   Mma, Existing             CUTLASS's main loop and epilogue
//   Params                    parameters of the iterators
//   why_refused(problem)      null, or the reason why the problem is refused
//   prepare(problem, params, tiles_m, tiles_n, steps)   sets its outputs
//   accumulate(params, p, shared, m, n, first, steps, accumulators)   adds `steps` steps of tile (m, n) from `first` on
//   place(params, m)          maps rows and columns of a tile to the output, for StepEpilogue
template <typename Work, typename Element, typename Steps, typename Launch>
struct Streamed {
  using Mma = typename Work::Mma;
  using Shape = typename Mma::Shape;
  using Epilogue = StepEpilogue<typename Work::Existing, Element, Steps>;
  using Accumulators = typename Mma::FragmentC;
  static int const kThreads = 32 * Mma::WarpCount::kCount;
  static int const kWords = Accumulators::kElements / 4;  // of four partial sums each

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

  // Launch values: swizzle, log2 of its width; slices, per tile; stream, the blocks of stream-K per multiprocessor (0:
  // none).
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

      __syncthreads();  // the previous tile's epilogue may still read shared memory
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

  // Writes this block's part of a tile to the workspace. In the block that is last it returns true and the total. It
  // resets the tile's counter to zero.
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
    __syncthreads();  // all threads have read `arrivals`, which the epilogue overwrites
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
