// Wgrad with the implicit GEMM of CUTLASS 2.x: M = k, N = r*s*c, K = n*p*q.
#pragma once
#include "cutlass/conv/kernel/default_conv2d_wgrad.h"
#include "cutlass2/stream.cuh"

namespace at {

template <typename Conv>
struct WgradWork {
  using Mma = typename Conv::Mma;
  using Existing = typename Conv::Epilogue;
  using Shape = typename Mma::Shape;
  using NHWC = cutlass::layout::TensorNHWC;

  struct Params {
    cutlass::conv::Conv2dProblemSize size;
    typename Mma::IteratorA::Params dy;
    typename Mma::IteratorB::Params x;
  };

  // The output as a matrix with a row per k and columns (r, s, c); a vector operand is indexed by c.
  struct Taps {
    Matrix matrix;
    int channels;
    CUTLASS_DEVICE bool operator()(int row, int column, int& channel, int64_t& offset) const {
      bool const inside = matrix(row, column, channel, offset);
      channel = column % channels;
      return inside;
    }
  };

  // Returns null, or the reason why the problem is refused.
  CUTLASS_DEVICE static char const* why_refused(at_conv2d const& a) {
    int const access = Mma::IteratorA::AccessType::kElements;
    if (a.groups != 1) return "groups must be 1";
    if (a.k % access || a.c % access || a.c % Existing::OutputTileIterator::kElementsPerAccess)
      return "c and k must be multiples of the alignment";
    // CUTLASS stores the size of dy, in bits, in 32 bits.
    if ((int64_t)a.n * a.p * a.q * a.k >= 1 << 27) return "dy must have fewer than 2^27 elements";
    return nullptr;
  }

  CUTLASS_DEVICE static void prepare(at_conv2d const& a, Params& params, int& tiles_m, int& tiles_n, int& steps) {
    cutlass::conv::Conv2dProblemSize const size(a.n, a.h, a.w, a.c, a.k, a.r, a.s, a.p, a.q, a.pad_h, a.pad_w,
                                                a.stride_h, a.stride_w, a.dilation_h, a.dilation_w,
                                                cutlass::conv::Mode::kCrossCorrelation, 1, 1);
    params = Params{size, Mma::IteratorA::getParams(size, NHWC::packed({a.n, a.p, a.q, a.k})),
                    typename Mma::IteratorB::Params(size, NHWC::packed({a.n, a.h, a.w, a.c}))};
    tiles_m = ceil_div(a.k, Shape::kM);
    tiles_n = ceil_div(a.r * a.s * a.c, Shape::kN);
    steps = ceil_div(a.n * a.p * a.q, Shape::kK);
  }

  CUTLASS_DEVICE static void accumulate(Params const& params, void* const* p, typename Mma::SharedStorage& shared,
                                        int m, int n, int first, int steps, typename Mma::FragmentC& accumulators) {
    int const thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync(), lane = thread % 32;
    typename Mma::IteratorA dy(params.dy, params.size, (typename Mma::IteratorA::Element*)p[0], thread,
                               cutlass::MatrixCoord(m * Shape::kM, first * Shape::kK));
    typename Mma::IteratorB x(params.x, params.size, (typename Mma::IteratorB::Element*)p[1], thread,
                              cutlass::MatrixCoord(first * Shape::kK, n * Shape::kN));
    Mma mma(shared, thread, warp, lane);
    mma(steps, accumulators, dy, x, accumulators);
  }

  CUTLASS_DEVICE static Taps place(Params const& params, int) {
    auto const& size = params.size;
    return {{size.K, size.R * size.S * size.C}, size.C};
  }
};

}  // namespace at
