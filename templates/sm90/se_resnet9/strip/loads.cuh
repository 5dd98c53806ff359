// The three loading warps of strip_se_block.cuh: issuing these loads takes one warp longer than the first image takes
// to arrive.
#pragma once
#include "common/copies.cuh"
#include "common/ptx/ptx.cuh"
#include "sm90/se_resnet9/strip/plan.cuh"

namespace at {

template <typename Config>
struct StripLoads {
  using P = StripPlan<Config>;
  using Layout = typename P::Layout;
  using Params = typename P::Params;

  AT_DEVICE static void load_all(const Params& params, const Layout& smem) {
    ptx::named_barrier_arrive<P::kReady, P::kReadyThreads>();
    load_some(params, smem, 0, params.early_loads);
    griddepcontrol_wait();
    load_some(params, smem, params.early_loads, P::kLoads);
    if constexpr (P::kCluster > 1)  // a block must not exit while others load into it
      for (int i = 0; i < P::kLoads; ++i) ptx::mbarrier_wait(smem.full + ptx::kMbarrierBytes * i, 0);
  }

  AT_DEVICE static void write_zeros(const Layout& smem) {
    const int lane = threadIdx.x % 32;
    ptx::named_barrier_sync<P::kReady, P::kReadyThreads>();
    for (int i = lane; i < kHalo * P::kVectors; i += 32)
      ptx::st_shared(smem.patch + halo(i / P::kVectors) * P::kRowBytes + i % P::kVectors * 16, make_uint4(0, 0, 0, 0));
    ptx::fence_view_async_shared();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(smem.zeros);
  }

  AT_DEVICE static void load_gate(const Params& params, const Layout& smem) {
    const int lane = threadIdx.x % 32;
    void* const* p = params.p.p + P::kFirstGate;
    ptx::named_barrier_sync<P::kReady, P::kReadyThreads>();
    for (int i = lane; i < params.hidden * P::kVectors; i += 32) {
      copy_async<16>(smem.w1 + 16 * i, (const char*)p[0] + 16 * i);
      copy_async<16>(smem.w2 + 16 * i, (const char*)p[2] + 16 * i);
    }
    for (int i = lane; i < params.hidden / 4; i += 32) copy_async<16>(smem.b1 + 16 * i, (const char*)p[1] + 16 * i);
    for (int i = lane; i < P::kChannels / 4; i += 32) copy_async<16>(smem.b2 + 16 * i, (const char*)p[3] + 16 * i);
    wait_for_all_copies();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(smem.gate);
  }

 private:
  AT_DEVICE static void load_stem(const Params& params, const Layout& smem) {
    ptx::mbarrier_arrive_expect_tx(smem.full, P::kImage * P::kStepBytes);
    for (int c = 0; c < P::kImage; ++c)
      ptx::tma_load_3d<false>(smem.stem + c * P::kStepBytes, params.stem_map, smem.full, 0, c, 0, 0);
  }

  AT_DEVICE static void load_tap(const Params& params, const Layout& smem, int i) {
    constexpr int kRows = P::kChannels / P::kCluster;
    const int first = P::kCluster > 1 ? (int)ptx::block_rank_in_cluster() * kRows : 0;
    const uint32_t full = smem.full + ptx::kMbarrierBytes + ptx::kMbarrierBytes * i;
    ptx::mbarrier_arrive_expect_tx(full, P::kTapBytes);
    ptx::tma_load_3d<(P::kCluster > 1)>(smem.weights + i * P::kTapBytes + first * P::kRowBytes,
                                        params.weight_maps[i / P::kTaps], full, 0, i % P::kTaps, first,
                                        (1 << P::kCluster) - 1);
  }

  // Loads `begin` to `end`: 0 is the stem's weights, i is tap i - 1.
  AT_DEVICE static void load_some(const Params& params, const Layout& smem, int begin, int end) {
    if (ptx::elect_one_sync())
      for (int i = begin; i < end; ++i) i ? load_tap(params, smem, i - 1) : load_stem(params, smem);
    __syncwarp();
  }

  // Index in the patch of halo pixel i: the two outer lines, then the two outer columns.
  static constexpr int kHalo = 2 * P::kPatchW + 2 * P::kH;
  AT_DEVICE static int halo(int i) {
    if (i < 2 * P::kPatchW) return i < P::kPatchW ? i : i + P::kH * P::kPatchW;
    i -= 2 * P::kPatchW;
    return (i / 2 + 1) * P::kPatchW + i % 2 * (P::kPatchW - 1);
  }
};

}  // namespace at
