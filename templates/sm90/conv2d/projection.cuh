// The projection of a skip connection (problem conv2d_se_skip): more products of the same tile, added to the gated
// accumulators. Its k_blocks are the tile's last.
#pragma once
#include "sm90/conv2d/mainloop.cuh"
#include "sm90/tensor_maps.cuh"

namespace at {

template <typename Config>
struct SkipProjection {
  using P = Conv2dPlan<Config>;
  using Params = typename P::Params;
  static_assert(P::kHidden > 0 && P::kJoint && P::kSlices == 1, "a projection follows streamed, gathered pixels");

  // ---- Before the launch ----

  // Returns why the kernel does not solve the problem, or null.
  template <typename Problem>
  AT_DEVICE static const char* prepare(const Problem& a, Params& params) {
    params.skip_channels = a.skip_c / a.skip_groups;
    params.skip_k_blocks = ceil_div(params.skip_channels, P::kK);
    params.skip_outputs = FastDivmod::make(a.skip_groups > 1 ? a.k / a.skip_groups : 1 << 30);
    const bool apart = a.skip_groups == 1 ||
                       params.skip_channels % P::kK == 0 && params.skip_outputs.divisor % (P::kN * P::kClusterN) == 0;
    if (a.skip_c % 8 || !apart) return "the projection's groups must be multiples of tile_k and tile_n channels";
    // All its k_blocks wait in their stages until the accumulators are scaled.
    if (params.activation_stages <= params.skip_k_blocks) return "fill_slots must exceed the loads of the projection";
    return nullptr;
  }

  template <typename Problem>
  AT_DEVICE static void describe_maps(const Problem& a, uint32_t pixels, const Params& params, at_prepared* out) {
    using Element = typename P::Element;
    const uint64_t skip_c = a.skip_c, rows = params.rows, channels = params.skip_channels;
    const uint64_t padded_k = ceil_div(a.k, 32) * 32;
    ptx::describe_tensor_map<Element>(add_tensor_map<Config>(out, P::kSkipMap, P::kSkip, P::kRowBytes), {skip_c, rows},
                                      {P::kK, pixels}, {1, 1});
    ptx::describe_tensor_map<Element>(add_tensor_map<Config>(out, P::kProjectionMap, P::kProjection, P::kRowBytes),
                                      {channels, 1, padded_k}, {P::kK, 1, P::kN / P::kClusterM}, {1, 1, 1});
  }

  // ---- Of the producers ----

  struct Origin {
    int c;  // the tile's first channel of the projected tensor
    AT_DEVICE void set(const Params& params, int channel) {
      c = params.skip_outputs.divide(channel) * params.skip_channels;
    }
  };

  AT_DEVICE static void prefetch_maps(const Params& params, bool activations) {
    ptx::prefetch_tensormap(activations ? params.skip_map : params.projection_map);
  }

  template <typename Load>
  AT_DEVICE static void each_k_block(const Params& params, const Load& load) {
    for (int i = 0; i < params.skip_k_blocks; ++i) load(i);
  }

  // ---- Of the consumers ----

  PipelineState first{0, 0};

  // Waits for the k_blocks, which are used later, during this warpgroup's turn.
  AT_DEVICE void wait(const Conv2dProducts<Config>& products, PipelineState& activations) {
    first = activations;
    for (int i = 0; i < products.params.skip_k_blocks; ++i) {
      products.activation_pipeline.consumer_wait(activations);
      activations.advance(products.params.activation_stages);
    }
  }

  // Adds the products; the hidden columns' sums are no longer needed. Each product is waited for: with several in
  // flight behind branches the compiler would serialize them all.
  AT_DEVICE void add(const Conv2dProducts<Config>& products, const typename P::ClusterCoord& cta,
                     typename P::Accum& accum) const {
    const Params& params = products.params;
    PipelineState state = first;
    int accumulate = 1;
    ptx::warpgroup_fence_operand(accum);
    for (int i = 0; i < params.skip_k_blocks; ++i, state.advance(params.activation_stages)) {
      const uint32_t stage = state.index * (params.stage_bytes >> 4);
      products.multiply(accum, products.activation_lo + stage, products.weight_lo + stage, accumulate);
      ptx::warpgroup_commit_batch();
      ptx::warpgroup_wait<0>();
      products.release_activations(cta, state.index);
    }
    ptx::warpgroup_fence_operand(accum);
  }
};

}  // namespace at
