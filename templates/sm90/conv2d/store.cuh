// The direct epilogue of the convolution: the sums of a split tile are added up, then the epilogue's steps run on
// registers, and each thread stores its vectors of eight channels.
#pragma once
#include "sm90/conv2d/stage.cuh"
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
struct Conv2dStore : Conv2dStage<Config> {
 protected:
  using P = Conv2dPlan<Config>;
  using Element = typename P::Element;
  using Layout = typename P::Layout;
  using ClusterCoord = typename P::ClusterCoord;
  using Params = typename P::Params;
  using Sum = typename Config::Sum;
  using Sums = typename P::Sums;
  using Tile = typename P::Tile;
  using Stage = Conv2dStage<Config>;

  // The vectors that a slice keeps, as a bit mask: from a comparison the compiler would make a dynamic index of the
  // accumulators, which would move them to local memory.
  AT_DEVICE static uint32_t own_vectors(const ClusterCoord& me) {
    constexpr int kOwn = P::kVectors / P::kSlices;
    return ((1u << kOwn) - 1) << me.slice * kOwn;
  }

  // Each slice keeps a part of the tile's vectors, receives the others' sums of these, and sends the rest away. Up to 8
  // KiB go straight to the owner's shared memory; each such store counts its bytes at a barrier. More is first written
  // to this block's own memory and then copied by TMA, a warp's part to the same warp of the owner.
  AT_DEVICE static void gather_slices(const Layout& smem, const ClusterCoord& me, Sums& sums) {
    constexpr int kOwn = P::kVectors / P::kSlices, kOthers = P::kSlices - 1;
    constexpr int kWanted = P::kBlocks * P::kHidden / 8;  // float4s of hidden values, which every slice needs
    constexpr int kWarpBytes = (2 * kOwn + kWanted) * 512, kPartBytes = kWarpBytes * 4 * P::kGroups;
    constexpr bool kOneByOne = kOthers * kPartBytes <= 8192;
    const int lane = threadIdx.x % 32, warp = ptx::warp_uniform(threadIdx.x / 32);
    // Memory: the parts that leave, then those that arrive. place(): the index of `slice` among the other slices of
    // `whose`.
    const auto place = [](int slice, int whose) { return slice - (slice > whose); };
    const uint32_t leaving = smem.fills + warp * kWarpBytes, coming = leaving + kOthers * kPartBytes;
    const auto of_vector = [&](int i, int j) { return (i % kOwn * 2 + j) * 512 + lane * 16; };
    const auto of_hidden = [&](int i) { return (kOwn * 2 + i) * 512 + lane * 16; };
    const auto hidden = [&](int i) -> Sum(&)[4] {
      return *(Sum(*)[4]) & sums[i % P::kBlocks][P::kN / 2 + i / P::kBlocks * 4];
    };
    const auto rank = [&](int slice) { return me.rank(me.m, me.n, slice); };

    ptx::cluster_arrive_relaxed();                 // this warp has read all its loads
    if constexpr (kOneByOne) ptx::cluster_wait();  // and so have the others
    else P::Excitation::sync();
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(smem.turn, kOthers * kPartBytes);
    const auto give = [&](int to, int offset, float4 four) {
      if constexpr (kOneByOne)
        ptx::st_async(coming + place(me.slice, to) * kPartBytes + offset, smem.turn, rank(to), four);
      else ptx::st_shared(leaving + place(to, me.slice) * kPartBytes + offset, four);
    };
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      const FragmentCoord at = fragment_coord<P::kBlocks>(i);
      const int owner = i / kOwn;
      if (owner == me.slice) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Sum* d = &sums[at.block][16 * at.columns + 8 * j + 2 * at.half];
        give(owner, of_vector(i, j), packed_sums(d[0], d[1], d[4], d[5]));
      }
    }
#pragma unroll
    for (int i = 0; i < kWanted; ++i)
#pragma unroll
      for (int slice = 0; slice < P::kSlices; ++slice)
        if (slice != me.slice)
          give(slice, of_hidden(i), packed_sums(hidden(i)[0], hidden(i)[1], hidden(i)[2], hidden(i)[3]));
    if constexpr (!kOneByOne) {
      ptx::fence_view_async_shared();
      __syncwarp();
      ptx::cluster_wait();  // the other blocks' memory is free
      if (lane < kOthers) {
        const int to = (me.slice + 1 + lane) % P::kSlices;  // so that the slices do not all send to the same block
        ptx::bulk_copy_dsmem(leaving + place(to, me.slice) * kPartBytes, coming + place(me.slice, to) * kPartBytes,
                             kWarpBytes, smem.turn, rank(to));
      }
    }
    ptx::mbarrier_wait(smem.turn, 0);
    ptx::cluster_arrive_relaxed();  // a block exits when all have received its data
    // Replaces four sums of this slice by those of all slices, added in the slices' order.
    const auto total = [&](int offset, Sum& a, Sum& b, Sum& c, Sum& d) {
      const float4 own = packed_sums(a, b, c, d);
      a = b = c = d = 0;
#pragma unroll
      for (int slice = 0; slice < P::kSlices; ++slice) {
        const float4 part =
            slice == me.slice ? own : ptx::ld_shared_float4(coming + place(slice, me.slice) * kPartBytes + offset);
        add_packed(a, part.x), add_packed(b, part.y), add_packed(c, part.z), add_packed(d, part.w);
      }
    };
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      const FragmentCoord at = fragment_coord<P::kBlocks>(i);
      if (!(own_vectors(me) >> i & 1)) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        Sum* d = &sums[at.block][16 * at.columns + 8 * j + 2 * at.half];
        total(of_vector(i, j), d[0], d[1], d[4], d[5]);
      }
    }
#pragma unroll
    for (int i = 0; i < kWanted; ++i) {
      Sum(&d)[4] = hidden(i);
      total(of_hidden(i), d[0], d[1], d[2], d[3]);
    }
  }

  // Vectors whose operands are fetched together, while the group before is worked on.
  static constexpr int kGroup = P::kVectors < 4 ? P::kVectors : 4, kVectorGroups = (P::kVectors + kGroup - 1) / kGroup;

  // Calls work(index in the group, coord, channel, offset, inside) for this thread's vectors of a group. Vectors
  // outside the output are computed too, with a channel that exists: with a branch per vector each would wait for its
  // own operands.
  template <typename Work>
  AT_DEVICE static void each_vector(const Params& x, const ClusterCoord& me, const Tile& tile,
                                    const int (&pixels)[P::kBlocks][2], int group, const Work& work) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const int i = group * kGroup + j;
      if (i >= P::kVectors) continue;
      const FragmentCoord at = fragment_coord<P::kBlocks>(i);
      if (P::kSlices > 1 && !(own_vectors(me) >> i & 1)) continue;
      const int own = tile.n * P::kN + at.channel() + threadIdx.x % 4 * 8, channel = min(own, x.k - P::kVector);
      const bool there = pixels[at.block][at.half] >= 0 && own < x.k;
      work(j, at, channel, (int64_t)pixels[at.block][at.half] * x.k + channel, there);
    }
  }

  AT_DEVICE static void find_pixels(const Params& x, const Tile& tile, int first_block, int (&pixels)[P::kBlocks][2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int i = 0; i < 2 * P::kBlocks; ++i)
      pixels[i / 2][i % 2] = Stage::output_pixel(x, tile, first_block + i / 2, 16 * warp + 8 * (i % 2) + lane / 4);
  }

  // The tensors that the steps read: the first group's are fetched while the gates or sums are still computed, then
  // always the next group's.
  struct Early {
    int pixels[P::kBlocks][2];
    typename Config::Steps::Fetched fetched[2][kGroup];
    AT_DEVICE Early() {}
    AT_DEVICE void begin(const Params& x, const ClusterCoord& me, const Tile& tile, int first_block) {
      find_pixels(x, tile, first_block, pixels);
      fetch(x, me, tile, 0);
    }
    AT_DEVICE void fetch(const Params& x, const ClusterCoord& me, const Tile& tile, int group) {
      each_vector(x, me, tile, pixels, group, [&](int j, FragmentCoord, int, int64_t offset, bool there) {
        if (there) Config::Steps::fetch(fetched[group % 2][j], x.p.p, offset);
      });
    }
  };

  AT_DEVICE static void store_tile(const Params& x, const ClusterCoord& me, const Tile& tile, Sums& sums,
                                   Early& early) {
#pragma unroll
    for (int group = 0; group < kVectorGroups; ++group) {
      if (group + 1 < kVectorGroups) early.fetch(x, me, tile, group + 1);
      each_vector(x, me, tile, early.pixels, group,
                  [&](int j, FragmentCoord at, int channel, int64_t offset, bool there) {
                    float v[P::kVector];
                    load_fragment(v, sums, at);
                    if (!Config::kStores || there)
                      Config::Steps::apply(v, x.p.p, x.scalars, channel, offset, early.fetched[group % 2][j]);
                    if (there) store(v, (Element*)x.p.p[P::kY] + offset);
                  });
    }
  }
};

}  // namespace at
