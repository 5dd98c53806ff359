// Dgrad with the implicit GEMM of CUTLASS 2.x: M = n*h*w, N = c, K = r*s*k.
//
// With a stride, the pixels of dx are sorted by their coordinates modulo the stride, and a tile holds pixels of one
// residue. These need the same filter taps, so the main loop skips all other taps. A step is one chunk of dy's
// channels, under all taps of the residue.
#pragma once
#include "cutlass/conv/kernel/default_conv2d_dgrad.h"
#include "cutlass2/stream.cuh"
#include "cutlass2/strided_loads.cuh"

namespace at {

template <typename Conv>
struct DgradWork {
  using Mma = typename WithStridedLoads<typename Conv::Mma>::type;
  using Existing = typename Conv::Epilogue;
  using Shape = typename Mma::Shape;
  using NHWC = cutlass::layout::TensorNHWC;
  static bool const kStrided = Mma::IteratorA::kStrideSupport == cutlass::conv::StrideSupport::kStrided;

  struct Params {
    cutlass::conv::Conv2dProblemSize size;
    typename Mma::IteratorA::Params dy;
    typename Mma::IteratorB::Params weight;
    cutlass::FastDivmod stride_h, stride_w;
    int tiles_a_residue;
  };

  // The pixels of dx in a row of tiles; all have the same residue.
  struct Pixels {
    int first_row, r, s, h, w, rows, columns;  // r, s: the first tap that contributes; h, w: the first pixel
    int stride_h, stride_w, images, height, width, channels;

    CUTLASS_DEVICE Pixels(Params const& params, int m) {
      auto const& size = params.size;
      int const residue = m / params.tiles_a_residue;
      first_row = residue * params.tiles_a_residue * Shape::kM;
      r = residue / size.stride_w;
      s = residue % size.stride_w;
      cutlass::conv::strided_dgrad_starting_coords(size, params.stride_h, params.stride_w, r, s, h, w);
      rows = (size.H - h + size.stride_h - 1) / size.stride_h;
      columns = (size.W - w + size.stride_w - 1) / size.stride_w;
      stride_h = size.stride_h;
      stride_w = size.stride_w;
      images = size.N;
      height = size.H;
      width = size.W;
      channels = size.C;
    }

    CUTLASS_DEVICE bool exist() const { return h < height && w < width; }

    CUTLASS_DEVICE bool operator()(int row, int column, int& channel, int64_t& offset) const {
      if (!exist()) return false;
      int const index = row - first_row, image = index / (rows * columns), pixel = index - image * rows * columns;
      int const y = h + pixel / columns * stride_h, x = w + pixel % columns * stride_w;
      channel = column;
      offset = (((int64_t)image * height + y) * width + x) * channels + column;
      return image < images && column < channels;
    }
  };

  // Returns null, or the reason why the problem is refused.
  CUTLASS_DEVICE static char const* why_refused(at_conv2d const& a) {
    // CUTLASS's strided iterators assume that neighbouring taps of a residue read neighbouring pixels of dy.
    if (kStrided && (a.dilation_h != 1 || a.dilation_w != 1)) return "with strided loads, dilation must be 1";
    if (!kStrided && (a.stride_h != 1 || a.stride_w != 1)) return "without strided loads, the stride must be 1";
    if (a.groups != 1) return "groups must be 1";
    int const access = Mma::IteratorA::AccessType::kElements;
    if (a.k % access || a.c % access || a.c % Existing::OutputTileIterator::kElementsPerAccess)
      return "c and k must be multiples of the alignment";
    if (a.r > 32 || a.s > 32) return "the filter must be at most 32x32";
    return nullptr;
  }

  CUTLASS_DEVICE static void prepare(at_conv2d const& a, Params& params, int& tiles_m, int& tiles_n, int& steps) {
    cutlass::conv::Conv2dProblemSize const size(a.n, a.h, a.w, a.c, a.k, a.r, a.s, a.p, a.q, a.pad_h, a.pad_w,
                                                a.stride_h, a.stride_w, a.dilation_h, a.dilation_w,
                                                cutlass::conv::Mode::kCrossCorrelation, 1, 1);
    int const tiles_a_residue = cutlass::conv::strided_dgrad_tile_m_per_filter(size, Shape::kM);
    params = Params{size,
                    Mma::IteratorA::getParams(size, NHWC::packed({a.n, a.p, a.q, a.k})),
                    typename Mma::IteratorB::Params(size, NHWC::packed({a.k, a.r, a.s, a.c})),
                    cutlass::FastDivmod(a.stride_h),
                    cutlass::FastDivmod(a.stride_w),
                    tiles_a_residue};
    tiles_m = tiles_a_residue * a.stride_h * a.stride_w;
    tiles_n = ceil_div(a.c, Shape::kN);
    steps = ceil_div(a.k, Shape::kK);
  }

  CUTLASS_DEVICE static void accumulate(Params const& params, void* const* p, typename Mma::SharedStorage& shared,
                                        int m, int n, int first, int steps, typename Mma::FragmentC& accumulators) {
    auto const& size = params.size;
    int const thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync(), lane = thread % 32;
    auto* dy_data = (typename Mma::IteratorA::Element*)p[0];
    auto* weight_data = (typename Mma::IteratorB::Element*)p[1];
    cutlass::MatrixCoord const of_dy(m * Shape::kM, first * Shape::kK), of_weight(first * Shape::kK, n * Shape::kN);
    Mma mma(shared, thread, warp, lane);
    if constexpr (kStrided) {
      Pixels const pixels(params, m);
      if (!pixels.exist() || pixels.r >= size.R || pixels.s >= size.S) return;  // nothing contributes
      typename Mma::IteratorA dy(params.dy, size, dy_data, thread, params.stride_h, params.stride_w, pixels.r, pixels.s,
                                 of_dy);
      typename Mma::IteratorB weight(params.weight, size, weight_data, thread, pixels.r, pixels.s, of_weight);
      mma(steps * size.num_gemm_k_filter_positions(pixels.r, pixels.s), accumulators, dy, weight, accumulators);
    } else {
      typename Mma::IteratorA dy(params.dy, size, dy_data, thread, of_dy);
      typename Mma::IteratorB weight(params.weight, size, weight_data, thread, of_weight);
      mma(steps * size.R * size.S, accumulators, dy, weight, accumulators, size.R * size.S);
    }
  }

  CUTLASS_DEVICE static auto place(Params const& params, int m) {
    if constexpr (kStrided) return Pixels(params, m);
    else return Matrix{params.size.N * params.size.H * params.size.W, params.size.C};
  }
};

}  // namespace at
