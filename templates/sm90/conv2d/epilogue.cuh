// The epilogue policies of HopperConv2d where a convolution has neither a gate nor a projection. The others:
// Conv2dStore or a kind of ColumnTotals; FoldedGate or ExcitationGate; SkipProjection.
#pragma once
#include "sm90/pipeline.cuh"

namespace at {

struct NoGate {
  template <typename... Arguments>
  AT_DEVICE explicit NoGate(const Arguments&...) {}
  template <typename... Arguments>
  AT_DEVICE static const char* prepare(const Arguments&...) {
    return nullptr;
  }
  template <typename... Arguments>
  AT_DEVICE static void describe_maps(const Arguments&...) {}
  template <typename Tile>
  AT_DEVICE void load_weights(const Tile&) {}
  template <typename Tile>
  AT_DEVICE void begin_tile(const Tile&) {}
  template <typename Tile, typename Accum>
  AT_DEVICE void scale(const Tile&, Accum&) const {}
};

struct NoProjection {
  struct Origin {
    static constexpr int c = 0;
    template <typename Params>
    AT_DEVICE void set(const Params&, int) {}
  };
  template <typename... Arguments>
  AT_DEVICE static const char* prepare(const Arguments&...) {
    return nullptr;
  }
  template <typename... Arguments>
  AT_DEVICE static void describe_maps(const Arguments&...) {}
  template <typename Params>
  AT_DEVICE static void prefetch_maps(const Params&, bool) {}
  template <typename Params, typename Load>
  AT_DEVICE static void each_k_block(const Params&, const Load&) {}
  template <typename Products>
  AT_DEVICE void wait(const Products&, PipelineState&) {}
  template <typename Products, typename ClusterCoord, typename Accum>
  AT_DEVICE void add(const Products&, const ClusterCoord&, Accum&) const {}
};

}  // namespace at
