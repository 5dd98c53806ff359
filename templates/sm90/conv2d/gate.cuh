// The epilogue of a convolution with squeeze-and-excitation. The steps before the gate run on the accumulators; the
// gate scales them; the other steps follow. The gates come from the tile's own sums, exchanged over a cluster (problem
// conv2d_se, se_gate.cuh), or from the tile's hidden columns (conv2d_folded_se, folded_se_gate.cuh).
#pragma once
#include "sm90/conv2d/store.cuh"
#include "sm90/fragment.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/registers.cuh"

namespace at {

template <typename Config>
struct Conv2dGate : Conv2dStore<Config> {
 protected:
  using P = Conv2dPlan<Config>;
  using Element = typename P::Element;
  using Excitation = typename P::Excitation;
  using Folded = typename P::Folded;
  using Layout = typename P::Layout;
  using ClusterCoord = typename P::ClusterCoord;
  using Params = typename P::Params;
  using Sums = typename P::Sums;
  using Tile = typename P::Tile;
  using Store = Conv2dStore<Config>;

  AT_DEVICE static Excitation excitation(const Params& x) { return Excitation(x.pixels, x.hidden); }
  AT_DEVICE static char* gate_memory(const Layout& smem) { return (char*)__cvta_shared_to_generic(smem.gate); }
  AT_DEVICE static int own_channel(const ClusterCoord& me, const Tile& tile) {
    return tile.n * P::kN + me.slice * P::kOwnN;
  }

  // Applies the steps before the gate to eight channels of both halves of a warp's rows.
  AT_DEVICE static void apply_before(const Params& x, int m, int columns, int channel, Sums& sums,
                                     float (&v)[2][P::kVector]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_fragment(v[half], sums, m, half, columns);
      if (channel < x.k) Config::Steps::before(v[half], x.p.p, x.scalars, channel);
      store_fragment(v[half], sums, m, half, columns);
    }
  }

  // ---- With a folded squeeze ----

  // A barrier of all threads of a tile. group: this thread's warpgroup.
  AT_DEVICE static void meet_for_tile(int group) {
    if constexpr (!P::kPingpong) ptx::named_barrier_sync<1, 128 * P::kGroups>();
    else if (group == 0) ptx::named_barrier_sync<1, 128>();
    else ptx::named_barrier_sync<2, 128>();
  }

  AT_DEVICE static Folded folded(const Params& x, const Layout& smem, int group) {
    return {x.pixels, x.hidden, x.pixel_weight, x.slabs,
            gate_memory(smem) + (P::kPingpong ? group : 0) * Folded::kBytes};
  }

  // Starts to copy the weights of the tile's gates to shared memory.
  AT_DEVICE static void load_folded(const Params& x, const Layout& smem, const Tile& tile, int group) {
    folded(x, smem, group)
        .load_weights(x.p.p + P::kFirstGate + 1, tile.n * P::kN, x.k,
                      threadIdx.x % (P::kPingpong ? 128 : 128 * P::kGroups));
  }

  // Applies the steps before the gate to the sums, then scales them by the gates.
  AT_DEVICE static void scale_folded(const Params& x, const Layout& smem, const Tile& tile, int group, int first_block,
                                     Sums& sums) {
#pragma unroll
    for (int columns = 0; columns < P::kN / 32; ++columns)
#pragma unroll
      for (int m = 0; m < P::kBlocks; ++m) {
        float v[2][P::kVector];
        apply_before(x, m, columns, tile.n * P::kN + 32 * columns + fragment_channel(threadIdx.x), sums, v);
      }
    folded(x, smem, group).scale(sums, first_block, [&] { meet_for_tile(group); });
  }

  // ---- With the tile's own sums ----

  // Applies the steps before the gate, adds up each image's pixels, and computes the gates.
  AT_DEVICE static Excitation excite(const Params& x, const Layout& smem, const ClusterCoord& me, const Tile& tile,
                                     int first_block, Sums& sums) {
    // A bit mask: from a comparison the compiler would make a dynamic index of the accumulators (local memory).
    const uint32_t own = P::kSlices == 1 ? ~0u : ((1u << P::kOwnColumns) - 1) << me.slice * P::kOwnColumns;
    const Excitation gate = excitation(x);
    char* memory = gate_memory(smem);
    const int lane = threadIdx.x % 32, warp = ptx::warp_uniform(threadIdx.x / 32) % 4;
    const int first_channel = tile.n * P::kN + fragment_channel(lane);
#pragma unroll
    for (int columns = 0; columns < P::kN / 32; ++columns) {
      if (!(own >> columns & 1)) continue;
      const int channel = first_channel + 32 * columns;
#pragma unroll
      for (int m = 0; m < P::kBlocks; ++m) {
        float v[2][P::kVector];
        apply_before(x, m, columns, channel, sums, v);
        gate.collect(v, memory, 4 * (first_block + m) + warp, 32 * (columns % P::kOwnColumns) + fragment_channel(lane));
      }
    }
    gate.excite(memory, own_channel(me, tile), x.k, me.n * P::kSlices + me.slice, smem.gate_full,
                [&](int peer) { return me.rank(me.m, peer / P::kSlices, peer % P::kSlices); });
    return gate;
  }

  // Computes the gates, scales and stores. The steps' tensors are fetched while the gates are computed.
  AT_DEVICE static void store_gated(const Params& x, const Layout& smem, const ClusterCoord& me, const Tile& tile,
                                    int first_block, Sums& sums) {
    int pixels[P::kBlocks][2];
    Store::find_pixels(x, tile, first_block, pixels);
    constexpr int kEarly = Store::kVectorGroups < 2 ? Store::kVectorGroups : 2;
    typename Config::Steps::Fetched fetched[kEarly][Store::kGroup];
    auto fetch = [&](int group) {
      Store::each_vector(x, me, tile, pixels, group, [&](int j, FragmentCoord, int, int64_t offset, bool there) {
        if (there) Config::Steps::fetch(fetched[group % kEarly][j], x.p.p, offset);
      });
    };
#pragma unroll
    for (int group = 0; group < kEarly; ++group) fetch(group);
    const Excitation gate = excite(x, smem, me, tile, first_block, sums);
    const float* gates = (const float*)(gate_memory(smem) + gate.mean());
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int group = 0; group < Store::kVectorGroups; ++group) {
      Store::each_vector(
          x, me, tile, pixels, group, [&](int j, FragmentCoord at, int channel, int64_t offset, bool there) {
            const int image =
                (64 * (first_block + at.block) + 16 * warp + 8 * at.half + fragment_row(lane)) / gate.pixels;
            float v[P::kVector], factor[P::kVector];
            load_fragment(v, sums, at);
            load(factor, gates + image * P::kOwnN + 32 * (at.columns % P::kOwnColumns) + fragment_channel(lane));
#pragma unroll
            for (int e = 0; e < P::kVector; ++e) v[e] *= factor[e];
            if (!Config::kStores || there)
              Config::Steps::apply(v, x.p.p, x.scalars, channel, offset, fetched[group % kEarly][j]);
            if (there) store(v, (Element*)x.p.p[P::kY] + offset);
          });
      if (group + kEarly < Store::kVectorGroups) fetch(group + kEarly);
    }
  }
};

}  // namespace at
