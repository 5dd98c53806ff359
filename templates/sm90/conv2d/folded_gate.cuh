// Squeeze-and-excitation whose squeeze is folded into filters (problem conv2d_folded_se): the gates come from the
// hidden columns of a tile's products (folded_se_gate.cuh).
#pragma once
#include "common/folded_se_gate.cuh"
#include "sm90/conv2d/gate_steps.cuh"
#include "sm90/conv2d/schedule.cuh"
#include "sm90/tensor_maps.cuh"

namespace at {

template <typename Config>
struct FoldedGate {
  using P = Conv2dPlan<Config>;
  using Accum = typename P::Accum;
  using Element = typename P::Element;
  using Layout = typename P::Layout;
  using Params = typename P::Params;
  using Schedule = ScheduleOf<P>;
  using Tile = typename P::Tile;
  using Folded = FoldedSeGate<Element, P::kM, P::kN, P::kHidden, Schedule::kTileThreads, Config::kWarpImages>;

  // ---- Before the launch ----

  // Returns why the kernel does not solve the problem, or null.
  template <typename Problem>
  AT_DEVICE static const char* prepare(const Problem& a, int hidden, Params& params) {
    if (const char* reason = set_gate<P>(a, hidden, params)) return reason;
    if (!Folded::fits(params.pixels, hidden) || a.groups > 1)
      return "the gate's pixels or hidden values are not those that the kernel is compiled for, or groups > 1";
    params.gate_bytes = P::kTiles * Folded::kBytes;
    params.pixel_weight = 1.f / params.pixels;
    params.slabs = FastDivmod::make(max(params.pixels / 16, 1));
    return nullptr;
  }

  template <typename Problem>
  AT_DEVICE static void describe_maps(const Problem& a, uint32_t hidden, const Params& params, at_prepared* out) {
    const uint64_t depth = params.group_channels, taps = a.r * a.s;
    ptx::describe_tensor_map<Element>(add_tensor_map<Config>(out, P::kHiddenMap, P::kFirstGate, P::kRowBytes),
                                      {depth, taps, hidden}, {P::kK, 1, P::kHidden}, {1, 1, 1});
  }

  // ---- Of the consumers ----

  const Params& params;
  const Layout& smem;
  const Schedule& schedule;
  int column = 0;  // of tiles, of which shared memory has the gates' weights

  AT_DEVICE FoldedGate(const Params& params, const Layout& smem, const typename P::ClusterCoord&,
                       const Schedule& schedule)
      : params(params), smem(smem), schedule(schedule) {}

  // Starts to copy the weights of a tile's gates to shared memory, where they stay for the column of tiles.
  AT_DEVICE void load_weights(const Tile& tile) {
    folded().load_weights(params.p.p + P::kFirstGate + 1, tile.n * P::kN, params.k,
                          threadIdx.x % Schedule::kTileThreads);
    column = tile.n;
  }

  AT_DEVICE void begin_tile(const Tile& tile) {
    if (P::kResident || tile.n == column) return;
    schedule.sync_tile();
    load_weights(tile);
  }

  // Applies the steps before the gate to the accumulators, then scales them by the gates.
  AT_DEVICE void scale(const Tile& tile, Accum& accum) const {
    AT_UNROLL for (int columns = 0; columns < P::kN / 32; ++columns) AT_UNROLL
      for (int m = 0; m < P::kBlocks; ++m) {
        const int channel = tile.n * P::kN + 32 * columns + fragment_channel(threadIdx.x);
        float v[2][P::kVector];
        apply_before<Config>(params, m, columns, channel, accum, v);
      }
    folded().scale(accum, schedule.first_block, [&] { schedule.sync_tile(); });
  }

 private:
  AT_DEVICE Folded folded() const {
    return {params.pixels, params.hidden, params.pixel_weight, params.slabs,
            gate_memory(smem) + schedule.tile_slot() * Folded::kBytes};
  }
};

}  // namespace at
