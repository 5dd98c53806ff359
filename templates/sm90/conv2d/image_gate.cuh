// Multiplies the output by gates that another kernel has computed, one for each image and channel (problem
// conv2d_broadcast, step mul_image).
#pragma once
#include "sm90/conv2d/stage.cuh"

namespace at {

template <typename Config>
struct ImageGate {
  using P = Conv2dPlan<Config>;
  using Accum = typename P::Accum;
  using Element = typename P::Element;
  using Params = typename P::Params;
  using Schedule = ScheduleOf<P>;
  using Stage = Conv2dStage<Config>;
  using Tile = typename P::Tile;

  // ---- Before the launch ----

  // Returns why the kernel does not solve the problem, or null.
  template <typename Problem>
  AT_DEVICE static const char* prepare(const Problem& a, int, Params& params) {
    params.slabs = FastDivmod::make(a.p * a.q);
    return nullptr;
  }
  template <typename... Arguments>
  AT_DEVICE static void describe_maps(const Arguments&...) {}

  // ---- Of the consumers ----

  const Params& params;
  const Schedule& schedule;

  template <typename Layout, typename ClusterCoord>
  AT_DEVICE ImageGate(const Params& params, const Layout&, const ClusterCoord&, const Schedule& schedule)
      : params(params), schedule(schedule) {}

  AT_DEVICE void load_weights(const Tile&) const {}
  AT_DEVICE void begin_tile(const Tile&) const {}

  // Applies the steps before the gate to the accumulators, then scales them. The rows of a thread mostly belong to one
  // image, whose gates are read once for eight channels.
  AT_DEVICE void scale(const Tile& tile, Accum& accum) const {
    const int lane = threadIdx.x % 32, first_row = 16 * (threadIdx.x / 32 % 4) + fragment_row(lane);
    const Element* const gates = static_cast<const Element*>(params.p.p[Config::kGates]);
    int images[P::kBlocks][2];
    AT_UNROLL for (int m = 0; m < P::kBlocks; ++m) AT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int pixel = Stage::output_pixel(params, tile, schedule.first_block + m, first_row + 8 * half);
        images[m][half] = params.slabs.divide(max(pixel, 0));
      }
    AT_UNROLL for (int columns = 0; columns < P::kN / 32; ++columns) {
      const int channel = tile.n * P::kN + 32 * columns + fragment_channel(lane);
      if (channel >= params.k) continue;
      float factor[P::kVector];
      int image = -1;
      AT_UNROLL for (int i = 0; i < 2 * P::kBlocks; ++i) {
        float v[P::kVector];
        load_fragment(v, accum, i / 2, i % 2, columns);
        Config::Steps::before(v, params.p.p, params.scalars, channel);
        if (images[i / 2][i % 2] != image) {
          image = images[i / 2][i % 2];
          load(factor, gates + int64_t(image) * params.k + channel);
        }
        AT_UNROLL for (int e = 0; e < P::kVector; ++e)
          v[e] *= factor[e];
        store_fragment(v, accum, i / 2, i % 2, columns);
      }
    }
  }
};

}  // namespace at
