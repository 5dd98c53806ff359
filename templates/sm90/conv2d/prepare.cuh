// What runs in one thread before a launch of the convolution: it checks the problem, fills in the parameters, and
// describes the tensor maps.
#pragma once
#include "sm90/conv2d/plan.cuh"
#include "sm90/tensor_maps.cuh"

namespace at {

template <typename Config, typename Gate, typename Projection>
struct Conv2dPrepare : Conv2dPlan<Config> {
  using P = Conv2dPlan<Config>;
  using typename P::Element;
  using typename P::Launch;
  using typename P::Params;

  // hidden: channels of the gate's hidden layer, or 0 without a gate.
  template <typename Problem>
  AT_DEVICE static void prepare(const Problem& a, int hidden, at_prepared* out) {
    Params params{};
    if (const char* reason = Gate::prepare(a, hidden, params)) return refused(out, reason);
    set_problem(a, params);
    params.along_m = a.launch[Launch::kRaster];
    if constexpr (P::kPatch)
      if (const char* reason = set_patch(a, params)) return refused(out, reason);
    const int64_t tiles_m =
        P::kPatch ? ceil_div(a.n, params.images) * (int64_t)params.out_area.divisor : ceil_div(params.rows, P::kM);
    set_stages(a, params);

    const int columns = ceil_div(ceil_div(a.k, P::kN), P::kClusterN);
    params.cluster_rows = FastDivmod::make(ceil_div(tiles_m, P::kClusterM));
    params.cluster_columns = FastDivmod::make(columns);
    params.cluster_tiles = params.cluster_rows.divisor * columns;
    int clusters = params.cluster_tiles;
    if (a.launch[Launch::kGrid] && P::kSlices == 1)
      clusters = min(clusters, max(1, a.launch[Launch::kGrid] / P::kCluster));
    if (P::kResident && clusters < params.cluster_tiles) {  // a block stays in its column of tiles
      clusters = max(clusters / columns, 1) * columns;
      params.along_m = 0;
    }
    if (const char* reason = Projection::prepare(a, params)) return refused(out, reason);
    if (const char* reason = misfit(a, params)) return refused(out, reason);
    const typename P::Layout smem(params, 0);
    prepared(out, params, clusters * P::kCluster, 1, 1, P::kThreads, kSmemAlignment + smem.end, 0);
    describe_maps(a, params, out);
    Gate::describe_maps(a, hidden, params, out);
    Projection::describe_maps(a, load_pixels(params), params, out);
  }

 private:
  // kMerge groups are computed as one, with zeros between them (layout "wgmma<M>").
  template <typename Problem>
  AT_DEVICE static int groups(const Problem& a) {
    return a.groups / Config::kMerge;
  }

  template <typename Problem>
  AT_DEVICE static void set_problem(const Problem& a, Params& params) {
    params.pointwise = !P::kPatch && a.r * a.s == 1 && a.stride_h * a.stride_w == 1 && a.pad_h + a.pad_w == 0;
    params.n = a.n;
    params.out_h = a.p;
    params.out_w = a.q;
    params.k = a.k;
    params.rows = a.n * a.p * a.q;
    params.r = a.r;
    params.s = a.s;
    params.stride_h = a.stride_h;
    params.stride_w = a.stride_w;
    params.pad_h = a.pad_h;
    params.pad_w = a.pad_w;
    params.dilation_h = a.dilation_h;
    params.dilation_w = a.dilation_w;
    params.group_channels = a.c / max(groups(a), 1);
    params.group_outputs = FastDivmod::make(groups(a) > 1 ? a.k / groups(a) : 1 << 30);
    params.chunks = ceil_div(params.group_channels, P::kK);
    params.phases_h = P::kPatch ? min(a.r, a.stride_h) : a.r;
    params.phases_w = P::kPatch ? min(a.s, a.stride_w) : a.s;
    params.k_blocks = params.phases_h * params.phases_w * params.chunks;
    params.out_area = FastDivmod::make(a.p * a.q);
    params.out_width = FastDivmod::make(a.q);
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.scalars[i] = a.scalars[i];
    // TMA needs several cycles for each row of zeros beyond the last pixel. So the last tile ends with the last pixel
    // and recomputes some pixels of the tile before, to the same bits. If all pixels are fewer than a tile, only they
    // are loaded, and the rows behind them in shared memory are computed but not stored.
    params.last_row = max(params.rows - P::kM, 0);
    params.activation_bytes = load_pixels(params) * P::kClusterN * P::kRowBytes;
  }

  // The pixels that one load gathers.
  AT_DEVICE static int load_pixels(const Params& params) {
    return P::kClusterN == 1 ? min(P::kM, params.rows) : P::kM / P::kClusterN;
  }

  // Returns why the patch is impossible, or null.
  template <typename Problem>
  AT_DEVICE static const char* set_patch(const Problem& a, Params& params) {
    params.squares_h = a.launch[Launch::kSquaresH];
    params.squares_w = a.launch[Launch::kSquaresW];
    params.images = a.launch[Launch::kImages];
    if (params.squares_h * params.squares_w * params.images * 64 != P::kM)
      return "squares_h * squares_w * images * 64 must be tile_m";
    if (a.stride_h > 1 && a.dilation_h > 1 || a.stride_w > 1 && a.dilation_w > 1)
      return "patches need stride 1 or dilation 1";
    // The first phase of the stride has the most taps.
    params.patch_h = 8 * params.squares_h + (ceil_div(a.r, params.phases_h) - 1) * a.dilation_h;
    params.patch_w = 8 * params.squares_w + (ceil_div(a.s, params.phases_w) - 1) * a.dilation_w;
    const int patches_h = ceil_div(a.p, 8 * params.squares_h), patches_w = ceil_div(a.q, 8 * params.squares_w);
    params.out_area = FastDivmod::make(patches_h * patches_w);
    params.out_width = FastDivmod::make(patches_w);
    params.activation_bytes = params.images * params.patch_h * params.patch_w * P::kRowBytes;
    if ((params.patch_h - 1) * a.stride_h >= 256 || (params.patch_w - 1) * a.stride_w >= 256)
      return "a patch is larger than a TMA box: at most 256 pixels a side";
    return nullptr;
  }

  template <typename Problem>
  AT_DEVICE static void set_stages(const Problem& a, Params& params) {
    const int staged = a.launch[Launch::kStaged];
    params.ahead = staged > 1 ? staged : 0;
    params.staging_bytes = staged ? P::kGroups * 4 * (P::kStages + params.ahead) * P::kStageBytes : 0;
    params.activation_stages = a.launch[Launch::kFillSlots];
    const int activations = P::kPatch ? params.activation_bytes : P::kM * P::kRowBytes;
    params.stage_bytes = align_smem(activations) + (P::kJoint ? P::kWeightBytes : 0);
    params.weight_stages = P::kResident ? a.r * a.s * params.chunks : P::kPatch ? a.launch[Launch::kWeightSlots] : 0;
  }

  // Returns why the kernel does not solve the problem with these launch values, or null.
  template <typename Problem>
  AT_DEVICE static const char* misfit(const Problem& a, const Params& params) {
    const int64_t stages = int64_t{params.activation_stages} * params.stage_bytes;
    const int64_t loads = stages + int64_t{params.weight_stages} * P::kWeightBytes;  // may exceed a Layout's 32 bits
    if (loads > AT_MAX_SHARED_BYTES || kSmemAlignment + typename P::Layout(params, 0).end > AT_MAX_SHARED_BYTES ||
        P::kExchangedBytes > stages)
      return "the tile needs more shared memory than the GPU has, or its split more than its stages have";
    if (params.activation_stages < 1 || params.activation_stages > 32 || (!P::kResident && params.weight_stages > 32) ||
        P::kSlices > params.k_blocks)
      return "fill_slots and weight_slots must be 1 to 32, and slices at most the loads of activations of a tile";
    // A k_block must not cross into the next group, nor may a tile: the next group reads other activations.
    const bool apart = groups(a) == 1 ||
                       params.group_channels % P::kK == 0 && params.group_outputs.divisor % (P::kN * P::kClusterN) == 0;
    if (!apart || a.groups % Config::kMerge) return "a group must be a multiple of tile_k and tile_n channels";
    constexpr int kGranule = 16 / (int)sizeof(Element);  // channels in 16 bytes, the unit of TMA's strides
    if (a.c % kGranule || a.k % kGranule)
      return kGranule == 8 ? "c and k must be multiples of 8" : "c and k must be multiples of 16";
    if (P::kSlices > 1 && params.staging_bytes) return "a split tile needs staging = 0";
    if (params.ahead > (P::kAhead ? 8 : 0)) return "staging must be at most 8, and 0 or 1 without an added tensor";
    return nullptr;
  }

  template <typename Problem>
  AT_DEVICE static void describe_maps(const Problem& a, const Params& params, at_prepared* out) {
    const uint64_t c = a.c, h = a.h, w = a.w, n = a.n, k = a.k, p = a.p, q = a.q, rows = params.rows;
    const uint64_t depth = params.group_channels, taps = a.r * a.s, padded_k = ceil_div(a.k, 32) * 32;
    const uint32_t pixels = load_pixels(params);
    at_tensor_map& activation = add_tensor_map<Config>(out, P::kActivationMap, P::kX, P::kRowBytes);
    if (params.pointwise) {
      ptx::describe_tensor_map<Element>(activation, {c, rows}, {P::kK, pixels}, {1, 1});
    } else {
      const uint32_t step_h = a.stride_h, step_w = a.stride_w, images = params.images;
      const uint32_t box_h = (params.patch_h - 1) * step_h + 1, box_w = (params.patch_w - 1) * step_w + 1;
      ptx::describe_tensor_map<Element>(activation, {c, w, h, n}, {P::kK, box_w, box_h, images},
                                        {1, step_w, step_h, 1});
    }
    if (!P::kPatch && !params.pointwise)
      set_im2col_box(activation, pixels, a.pad_h, a.pad_w, (a.r - 1) * a.dilation_h, (a.s - 1) * a.dilation_w);
    ptx::describe_tensor_map<Element>(add_tensor_map<Config>(out, P::kWeightMap, P::kWeight, P::kRowBytes),
                                      {depth, taps, padded_k}, {P::kK, 1, P::kN / P::kClusterM}, {1, 1, 1});
    const auto describe_output = [&](int offset, int pointer) {
      at_tensor_map& map = add_tensor_map<Config>(out, offset, pointer, P::kStageRowBytes);
      if (P::kPatch) ptx::describe_tensor_map<Element>(map, {k, q, p, n}, {P::kStageChannels, 8, 2, 1}, {1, 1, 1, 1});
      else ptx::describe_tensor_map<Element>(map, {k, rows}, {P::kStageChannels, 16}, {1, 1});
    };
    if (params.staging_bytes) describe_output(P::kOutputMap, P::kY);
    if (params.ahead) describe_output(P::kAddedMap, Config::kAddedPointer);
  }
};

}  // namespace at
