// A tile that the blocks of a cluster split: each has multiplied some of its channels and taps, and they exchange
// their accumulators through distributed shared memory.
#pragma once
#include "sm90/conv2d/plan.cuh"
#include "sm90/fragment.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"
#include "common/ptx/tma.cuh"

namespace at {

// Sums of any type travel between blocks as floats with the same bits.
AT_DEVICE float4 packed_sums(float a, float b, float c, float d) { return make_float4(a, b, c, d); }
AT_DEVICE float4 packed_sums(int a, int b, int c, int d) {
  return make_float4(__int_as_float(a), __int_as_float(b), __int_as_float(c), __int_as_float(d));
}
AT_DEVICE void add_packed(float& sum, float part) { sum += part; }
AT_DEVICE void add_packed(int& sum, float part) { sum += __float_as_int(part); }

template <typename Config>
struct SplitTile {
  using P = Conv2dPlan<Config>;
  using Accum = typename P::Accum;
  using ClusterCoord = typename P::ClusterCoord;
  using ElementAccum = typename P::ElementAccum;
  using Layout = typename P::Layout;

  // The vectors that a slice keeps, as a bit mask: from a comparison the compiler would make a dynamic index of the
  // accumulators, which would move them to local memory.
  AT_DEVICE static uint32_t slice_vectors(const ClusterCoord& cta) {
    constexpr int kSliceVectors = P::kVectors / P::kSlices;
    return ((1u << kSliceVectors) - 1) << cta.slice * kSliceVectors;
  }

  // Each slice keeps a part of the tile's vectors, receives the others' sums of these, and sends the rest away. Up to 8
  // KiB go straight to the owner's shared memory; each such store counts its bytes at a barrier. More is first written
  // to this block's own memory and then copied by TMA, a warp's part to the same warp of the owner.
  AT_DEVICE static void gather(const Layout& smem, const ClusterCoord& cta, Accum& accum) {
    constexpr int kSliceVectors = P::kVectors / P::kSlices, kOthers = P::kSlices - 1;
    constexpr int kWanted = P::kBlocks * P::kHidden / 8;  // float4s of hidden values, which every slice needs
    constexpr int kWarpBytes = (2 * kSliceVectors + kWanted) * 512, kPartBytes = kWarpBytes * 4 * P::kGroups;
    constexpr bool kOneByOne = kOthers * kPartBytes <= 8192;
    const int lane = threadIdx.x % 32, warp = ptx::warp_uniform(threadIdx.x / 32);
    // Memory: the parts that leave, then those that arrive. place(): the index of `slice` among the other slices of
    // `whose`.
    const auto place = [](int slice, int whose) { return slice - (slice > whose); };
    const uint32_t leaving = smem.activations + warp * kWarpBytes, coming = leaving + kOthers * kPartBytes;
    const auto of_vector = [&](int i, int j) { return (i % kSliceVectors * 2 + j) * 512 + lane * 16; };
    const auto of_hidden = [&](int i) { return (kSliceVectors * 2 + i) * 512 + lane * 16; };
    const auto hidden = [&](int i) -> ElementAccum(&)[4] {
      return *(ElementAccum(*)[4]) & accum[i % P::kBlocks][P::kN / 2 + i / P::kBlocks * 4];
    };
    const auto rank = [&](int slice) { return cta.rank(cta.m, cta.n, slice); };

    ptx::cluster_arrive_relaxed();                 // this warp has read all its loads
    if constexpr (kOneByOne) ptx::cluster_wait();  // and so have the others
    else ptx::named_barrier_sync<1, 128 * P::kGroups>();
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(smem.order, kOthers * kPartBytes);
    const auto give = [&](int to, int offset, float4 four) {
      if constexpr (kOneByOne)
        ptx::st_async(coming + place(cta.slice, to) * kPartBytes + offset, smem.order, rank(to), four);
      else ptx::st_shared(leaving + place(to, cta.slice) * kPartBytes + offset, four);
    };
    AT_UNROLL for (int i = 0; i < P::kVectors; ++i) {
      const FragmentCoord at = fragment_coord<P::kBlocks>(i);
      const int owner = i / kSliceVectors;
      if (owner == cta.slice) continue;
      AT_UNROLL for (int j = 0; j < 2; ++j) {
        const ElementAccum* d = &accum[at.block][16 * at.columns + 8 * j + 2 * at.half];
        give(owner, of_vector(i, j), packed_sums(d[0], d[1], d[4], d[5]));
      }
    }
    AT_UNROLL for (int i = 0; i < kWanted; ++i) AT_UNROLL
      for (int slice = 0; slice < P::kSlices; ++slice)
        if (slice != cta.slice)
          give(slice, of_hidden(i), packed_sums(hidden(i)[0], hidden(i)[1], hidden(i)[2], hidden(i)[3]));
    if constexpr (!kOneByOne) {
      ptx::fence_view_async_shared();
      __syncwarp();
      ptx::cluster_wait();  // the other blocks' memory is free
      if (lane < kOthers) {
        const int to = (cta.slice + 1 + lane) % P::kSlices;  // so that the slices do not all send to the same block
        ptx::bulk_copy_dsmem(leaving + place(to, cta.slice) * kPartBytes, coming + place(cta.slice, to) * kPartBytes,
                             kWarpBytes, smem.order, rank(to));
      }
    }
    ptx::mbarrier_wait(smem.order, 0);
    ptx::cluster_arrive_relaxed();  // a block exits when all have received its data
    // Replaces four sums of this slice by those of all slices, added in the slices' order.
    const auto total = [&](int offset, ElementAccum& a, ElementAccum& b, ElementAccum& c, ElementAccum& d) {
      const float4 own = packed_sums(a, b, c, d);
      a = b = c = d = 0;
      AT_UNROLL for (int slice = 0; slice < P::kSlices; ++slice) {
        const float4 part =
            slice == cta.slice ? own : ptx::ld_shared_float4(coming + place(slice, cta.slice) * kPartBytes + offset);
        add_packed(a, part.x), add_packed(b, part.y), add_packed(c, part.z), add_packed(d, part.w);
      }
    };
    AT_UNROLL for (int i = 0; i < P::kVectors; ++i) {
      const FragmentCoord at = fragment_coord<P::kBlocks>(i);
      if (!(slice_vectors(cta) >> i & 1)) continue;
      AT_UNROLL for (int j = 0; j < 2; ++j) {
        ElementAccum* d = &accum[at.block][16 * at.columns + 8 * j + 2 * at.half];
        total(of_vector(i, j), d[0], d[1], d[4], d[5]);
      }
    }
    AT_UNROLL for (int i = 0; i < kWanted; ++i) {
      ElementAccum(&d)[4] = hidden(i);
      total(of_hidden(i), d[0], d[1], d[2], d[3]);
    }
  }
};

}  // namespace at
