// The epilogue of a convolution with squeeze-and-excitation (problem conv2d_se): the gates come from the tile's own
// accumulators, exchanged over a cluster (se_gate.cuh). The steps before the gate run on the accumulators; the gate
// scales them; the other steps follow.
#pragma once
#include "common/se_gate.cuh"
#include "sm90/conv2d/gate_steps.cuh"
#include "sm90/conv2d/schedule.cuh"
#include "sm90/conv2d/store.cuh"

namespace at {

template <typename Config>
struct ExcitationGate {
  using P = Conv2dPlan<Config>;
  using Accum = typename P::Accum;
  using ClusterCoord = typename P::ClusterCoord;
  using Element = typename P::Element;
  using Excitation = SeGate<Element, P::kM, P::kSliceN, P::kClusterN * P::kSlices, 128 * P::kGroups>;
  using Layout = typename P::Layout;
  using Params = typename P::Params;
  using Schedule = CooperativeSchedule<P>;
  using Store = Conv2dStore<Config>;
  using Tile = typename P::Tile;
  static_assert(!P::kPingpong && P::kClusterM == 1 && P::kVectors / P::kSlices % (2 * P::kBlocks) == 0,
                "a gated tile belongs to the whole block, and a slice of it to whole columns");

  // ---- Before the launch ----

  // Returns why the kernel does not solve the problem, or null.
  template <typename Problem>
  AT_DEVICE static const char* prepare(const Problem& a, int hidden, Params& params) {
    using Launch = typename P::Launch;
    if (const char* reason = set_gate<P>(a, hidden, params)) return reason;
    const Excitation gate(params.pixels, hidden);
    if (!gate.fits()) return "a gate needs 4, 8 or a multiple of 16 pixels that divide tile_m, and hidden % 4 = 0";
    if (a.launch[Launch::kGrid] || a.launch[Launch::kStaged]) return "a gate needs grid = 0 and staging = 0";
    if (ceil_div(a.k, P::kN) != P::kClusterN) return "with a gate a cluster must hold all output channels";
    params.gate_bytes = ceil_div(gate.bytes(), 128) * 128;
    return nullptr;
  }
  template <typename... Arguments>
  AT_DEVICE static void describe_maps(const Arguments&...) {}

  // ---- Of the consumers ----

  const Params& params;
  const Layout& smem;
  const ClusterCoord cta;
  const Schedule& schedule;

  AT_DEVICE ExcitationGate(const Params& params, const Layout& smem, const ClusterCoord& cta, const Schedule& schedule)
      : params(params), smem(smem), cta(cta), schedule(schedule) {}

  AT_DEVICE void load_weights(const Tile& tile) const {
    excitation().load_weights(gate_memory(smem), params.p.p + P::kFirstGate, first_channel(tile), params.k,
                              threadIdx.x);
  }
  AT_DEVICE void begin_tile(const Tile&) const {}

  // Computes the gates, scales and stores. The steps' tensors are fetched while the gates are computed.
  AT_DEVICE void store_tile(const Tile& tile, Accum& accum) const {
    int pixels[P::kBlocks][2];
    Store::find_pixels(params, tile, schedule.first_block, pixels);
    constexpr int kEarly = Store::kVectorGroups < 2 ? Store::kVectorGroups : 2;
    typename Config::Steps::Fetched fetched[kEarly][Store::kGroup];
    const auto fetch = [&](int group) {
      Store::each_vector(params, cta, tile, pixels, group,
                         [&](int j, FragmentCoord, int, int64_t offset, bool in_bounds) {
                           if (in_bounds) Config::Steps::fetch(fetched[group % kEarly][j], params.p.p, offset);
                         });
    };
    AT_UNROLL for (int group = 0; group < kEarly; ++group)
      fetch(group);
    const Excitation gate = excite(tile, accum);
    const float* gates = reinterpret_cast<const float*>(gate_memory(smem) + gate.mean());
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, first_row = 64 * schedule.first_block + 16 * warp;
    AT_UNROLL for (int group = 0; group < Store::kVectorGroups; ++group) {
      Store::each_vector(
          params, cta, tile, pixels, group, [&](int j, FragmentCoord at, int channel, int64_t offset, bool in_bounds) {
            const int image = (first_row + at.row() + fragment_row(lane)) / gate.pixels;
            float v[P::kVector], factor[P::kVector];
            load_fragment(v, accum, at);
            load(factor, gates + image * P::kSliceN + 32 * (at.columns % P::kSliceColumns) + fragment_channel(lane));
            AT_UNROLL for (int e = 0; e < P::kVector; ++e)
              v[e] *= factor[e];
            if (!Config::kStores || in_bounds)
              Config::Steps::apply(v, params.p.p, params.scalars, channel, offset, fetched[group % kEarly][j]);
            if (in_bounds) store(v, static_cast<Element*>(params.p.p[P::kY]) + offset);
          });
      if (group + kEarly < Store::kVectorGroups) fetch(group + kEarly);
    }
  }

 private:
  AT_DEVICE Excitation excitation() const { return Excitation(params.pixels, params.hidden); }
  // The first channel that this block finishes.
  AT_DEVICE int first_channel(const Tile& tile) const { return tile.n * P::kN + cta.slice * P::kSliceN; }

  // Applies the steps before the gate, adds up each image's pixels, and computes the gates.
  AT_DEVICE Excitation excite(const Tile& tile, Accum& accum) const {
    // A bit mask: from a comparison the compiler would make a dynamic index of the accumulators (local memory).
    const uint32_t kept = P::kSlices == 1 ? ~0u : ((1u << P::kSliceColumns) - 1) << cta.slice * P::kSliceColumns;
    const Excitation gate = excitation();
    char* const memory = gate_memory(smem);
    const int lane = threadIdx.x % 32, warp = ptx::warp_uniform(threadIdx.x / 32) % 4;
    const int first = tile.n * P::kN + fragment_channel(lane);
    AT_UNROLL for (int columns = 0; columns < P::kN / 32; ++columns) {
      if (!(kept >> columns & 1)) continue;
      AT_UNROLL for (int m = 0; m < P::kBlocks; ++m) {
        float v[2][P::kVector];
        apply_before<Config>(params, m, columns, first + 32 * columns, accum, v);
        gate.collect(v, memory, 4 * (schedule.first_block + m) + warp,
                     32 * (columns % P::kSliceColumns) + fragment_channel(lane));
      }
    }
    gate.excite(memory, first_channel(tile), params.k, cta.n * P::kSlices + cta.slice, smem.gate_full,
                [&](int peer) { return cta.rank(cta.m, peer / P::kSlices, peer % P::kSlices); });
    return gate;
  }
};

}  // namespace at
