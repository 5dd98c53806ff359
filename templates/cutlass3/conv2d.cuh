// Fprop, dgrad and wgrad with the implicit GEMM of CUTLASS 3.x for Hopper. TMA loads rows of the im2col matrix directly
// from the image. One warpgroup computes a tile, and a block computes one tile.
//
//   pass    m       n                k                A             B
//   fprop   n p q   k                c for each tap   x, im2col     weight
//   dgrad   n h w   c                k for each tap   dy, im2col    weight
//   wgrad   k       c for each tap   n p q            dy, tiled     x, im2col
#pragma once
#include "cutlass3/common.cuh"
// After common.cuh, whose headers these need.
#include "cute/atom/copy_traits_sm90_im2col.hpp"
#include "cutlass/conv/convolution.h"
#include "cutlass/conv/collective/collective_builder.hpp"
#include "cutlass/conv/kernel/conv_universal.hpp"

namespace at {

// Config: Element, Steps, kSource (pointer of the tensor that the epilogue loads by TMA; 0: none), kPass, the tile kM x
// kN x kK, kEpilogueN, kClusterM, kClusterN, kStages.
template <typename Config_>
struct Conv3 {
  struct Config : Config_ {
    static constexpr int kAlignment = 16 / sizeof(typename Config_::Element);
  };
  using Element = typename Config::Element;
  using Pass = cutlass::conv::Operator;
  static constexpr Pass kPass = Config::kPass;
  static constexpr bool kWgrad = kPass == Pass::kWgrad, kDgrad = kPass == Pass::kDgrad;
  using N = cute::Int<Config::kN>;
  using Part = cute::Int<Config::kEpilogueN>;
  // A tile has the mode structure of the problem: (c, s, r) is one nested mode.
  using Tile = cute::Shape<cute::Int<Config::kM>, cute::conditional_t<kWgrad, cute::Shape<N>, N>,
                           cute::Shape<cute::Int<Config::kK>>>;
  using Cluster = cute::Shape<cute::Int<Config::kClusterM>, cute::Int<Config::kClusterN>, cute::_1>;
  using NHWC = cutlass::layout::TensorNHWC;
  // The output of fprop and dgrad is stored as a row-major matrix.
  using Epilogue =
      StepEpilogue<Config, Tile,
                   cute::conditional_t<kWgrad, cute::Tile<cute::_64, cute::Tile<Part>>, cute::Shape<cute::_64, Part>>,
                   cutlass::epilogue::TmaWarpSpecialized,
                   cute::conditional_t<kWgrad, cutlass::layout::TensorKCSR, cutlass::layout::RowMajor>>;
  using Mainloop = typename cutlass::conv::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, kPass, Element, NHWC, Config::kAlignment, Element, NHWC,
      Config::kAlignment, float, Tile, Cluster, cutlass::conv::collective::StageCount<Config::kStages>,
      cutlass::conv::KernelImplicitTmaWarpSpecializedSm90>::CollectiveOp;
  using Kernel = cutlass::conv::kernel::ConvUniversal<cutlass::conv::ConvProblemShape<kPass, 2>, Mainloop, Epilogue>;
  using Params = typename Kernel::Params;
  static constexpr int kThreads = Kernel::MaxThreadsPerBlock;
  static constexpr int kSharedBytes = Kernel::SharedStorageSize;

  CUTLASS_DEVICE static void prepare(at_conv2d const& a, at_prepared* out) {
    Preparing<Kernel> preparing(a.scalars, out);
    Params& params = preparing.params;
    bool const odd_stride = kDgrad && (a.stride_h != 1 || a.stride_w != 1);
    if (a.groups != 1) return refused(out, "groups must be 1");
    if (odd_stride) return refused(out, "the gradient by the input needs stride 1");
    if (a.c % Config::kAlignment || a.k % Config::kAlignment)
      return refused(out, "c and k must be multiples of the alignment");
    describe_operands(params, out->tensor_maps, a);
    out->tensor_map_count = 2;
    preparing.describe_output(output(a), Config::kSource);
    params.problem_shape = problem_shape(a);
    int tiles_m, tiles_n;
    if constexpr (kWgrad) {
      tiles_m = ceil_div(a.k, Config::kM);
      tiles_n = ceil_div(a.c, Config::kN) * a.r * a.s;
    } else {
      tiles_m = ceil_div(kDgrad ? a.n * a.h * a.w : a.n * a.p * a.q, Config::kM);
      tiles_n = ceil_div(kDgrad ? a.c : a.k, Config::kN);
    }
    int const grid_n = ceil_div(tiles_n, Config::kClusterN) * Config::kClusterN;
    if (grid_n > 65535) return refused(out, "the channels have more tiles than a grid's second dimension");
    preparing.launch(ceil_div(tiles_m, Config::kClusterM) * Config::kClusterM, grid_n, kSharedBytes, 0);
  }

  CUTLASS_HOST_DEVICE static auto problem_shape(at_conv2d const& a) {
    using namespace cute;
    if constexpr (kWgrad) return make_shape(a.k, make_shape(a.c, a.s, a.r), a.n * a.p * a.q, _1{});
    else if constexpr (kDgrad) return make_shape(a.n * a.h * a.w, a.c, make_shape(a.k, a.s, a.r), 1);
    else return make_shape(a.n * a.p * a.q, a.k, make_shape(a.c, a.s, a.r), _1{});
  }

  template <typename Params>
  CUTLASS_HOST_DEVICE static void describe_operands(Params& params, at_tensor_map* maps, at_conv2d const& a) {
    using namespace cute;
    using A = typename Mainloop::InternalElementA;
    using B = typename Mainloop::InternalElementB;
    int64_t const c = a.c, k = a.k;
    auto const image = [&](auto const* element, int height, int width, int64_t channels) {
      auto const pixels = make_shape(width, height, a.n);
      auto const strides = make_stride(channels, channels * width, channels * width * height);
      auto const memory = make_gmem_ptr(element);
      if constexpr (kWgrad) return make_tensor(memory, make_shape(int(channels), pixels), make_stride(_1{}, strides));
      else return make_tensor(memory, make_shape(pixels, int(channels)), make_stride(strides, _1{}));
    };
    auto const shared_a = typename Mainloop::SmemLayoutA{}(_, _, _0{});
    auto const shared_b = typename Mainloop::SmemLayoutB{}(_, _, _0{});
    auto& of_a = params.mainloop.tma_load_a;
    auto& of_b = params.mainloop.tma_load_b;
    A const* const no_a = nullptr;
    B const* const no_b = nullptr;
    if constexpr (kWgrad) {
      describe_tiled(maps[0], of_a, make_tensor(no_a, make_shape(a.k, a.n * a.p * a.q), make_stride(_1{}, k)), kA,
                     Config::kClusterN, &params);
      describe_im2col(maps[1], of_b, image(no_b, a.h, a.w, c), shared_b, kB, Config::kClusterM, window(a), &params);
    } else if constexpr (kDgrad) {
      describe_im2col(maps[0], of_a, image(no_a, a.p, a.q, k), shared_a, kA, Config::kClusterN, window(a), &params);
      auto const weight = make_layout(make_shape(a.c, make_shape(a.k, a.s, a.r)),
                                      make_stride(_1{}, make_stride(c * a.s * a.r, c, c * a.s)));
      describe_tiled(maps[1], of_b, make_tensor(no_b, weight), kB, Config::kClusterM, &params);
    } else {
      describe_im2col(maps[0], of_a, image(no_a, a.h, a.w, c), shared_a, kA, Config::kClusterN, window(a), &params);
      auto const weight = make_layout(make_shape(a.k, make_shape(a.c, a.s, a.r)),
                                      make_stride(c * a.s * a.r, make_stride(_1{}, c, c * a.s)));
      describe_tiled(maps[1], of_b, make_tensor(no_b, weight), kB, Config::kClusterM, &params);
    }
  }

  // Dgrad visits the taps backwards, from the last pixel of dy that contributes to a pixel of dx.
  CUTLASS_HOST_DEVICE static Window window(at_conv2d const& a) {
    int const reach_h = (a.r - 1) * a.dilation_h, reach_w = (a.s - 1) * a.dilation_w;
    Window x{};
    x.padding = {a.pad_w, a.pad_h};
    x.stride = {a.stride_w, a.stride_h};
    if constexpr (kDgrad) {
      x.lower = {a.pad_w - reach_w, a.pad_h - reach_h};
      x.upper = {a.pad_w - reach_w + a.w - a.q, a.pad_h - reach_h + a.h - a.p};
      x.first_tap = {reach_w, reach_h};
      x.tap_step = {-a.dilation_w, -a.dilation_h};
    } else {
      x.lower = {-a.pad_w, -a.pad_h};
      x.upper = {a.pad_w - reach_w, a.pad_h - reach_h};
      x.first_tap = {0, 0};
      x.tap_step = {a.dilation_w, a.dilation_h};
    }
    return x;
  }

  CUTLASS_HOST_DEVICE static auto output(at_conv2d const& a) {
    using namespace cute;
    int64_t const c = a.c;
    Element const* const none = nullptr;
    if constexpr (kWgrad) {
      return make_tensor(none, make_shape(a.k, make_shape(a.c, a.s, a.r), 1),
                         make_stride(c * a.s * a.r, make_stride(_1{}, c, c * a.s), _0{}));
    } else {
      int const rows = kDgrad ? a.n * a.h * a.w : a.n * a.p * a.q, columns = kDgrad ? a.c : a.k;
      int64_t const along = columns;
      return make_tensor(none, make_shape(rows, columns, 1), make_stride(along, _1{}, along * rows));
    }
  }

  CUTLASS_DEVICE static void run(Params const& params, char* shared) { Kernel{}(params, shared); }
};

}  // namespace at
