// A GEMM with the main loop of CUTLASS 2.x: x (m, k) times the transpose of weight (n, k), both with k innermost.
#pragma once
#include "cutlass/gemm/kernel/default_gemm.h"
#include "cutlass2/stream.cuh"

namespace at {

template <typename Gemm, int Alignment>
struct GemmWork {
  using Mma = typename Gemm::Mma;
  using Existing = typename Gemm::Epilogue;
  using Shape = typename Mma::Shape;

  struct Params {
    typename Mma::IteratorA::Params x;
    typename Mma::IteratorB::Params weight;
    int rows, columns, depth;
  };

  // Returns null, or the reason why the problem is refused.
  CUTLASS_DEVICE static char const* why_refused(at_conv2d const& a) {
    bool const plain =
        a.r == 1 && a.s == 1 && a.groups == 1 && a.stride_h == 1 && a.stride_w == 1 && a.pad_h == 0 && a.pad_w == 0;
    if (!plain) return "the convolution must be 1x1 with stride 1, no padding and one group";
    if (a.c % Alignment) return "c (k of a GEMM) must be a multiple of the alignment";
    if (a.k % Existing::OutputTileIterator::kElementsPerAccess)
      return "k (n of a GEMM) must be a multiple of the alignment of the output";
    return nullptr;
  }

  CUTLASS_DEVICE static void prepare(at_conv2d const& a, Params& params, int& tiles_m, int& tiles_n, int& steps) {
    params.x = typename Mma::IteratorA::Params(cutlass::layout::RowMajor(a.c));
    params.weight = typename Mma::IteratorB::Params(cutlass::layout::ColumnMajor(a.c));
    params.rows = a.n * a.h * a.w;
    params.columns = a.k;
    params.depth = a.c;
    tiles_m = ceil_div(params.rows, Shape::kM);
    tiles_n = ceil_div(params.columns, Shape::kN);
    steps = ceil_div(params.depth, Shape::kK);
  }

  CUTLASS_DEVICE static void accumulate(Params const& params, void* const* p, typename Mma::SharedStorage& shared,
                                        int m, int n, int first, int steps, typename Mma::FragmentC& accumulators) {
    int const thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync(), lane = thread % 32;
    int const from = first * Shape::kK, until = from + steps * Shape::kK;
    int const to = until < params.depth ? until : params.depth;
    typename Mma::IteratorA x(params.x, (typename Mma::IteratorA::Pointer)p[0], {params.rows, to}, thread,
                              {m * Shape::kM, from});
    typename Mma::IteratorB weight(params.weight, (typename Mma::IteratorB::Pointer)p[1], {to, params.columns}, thread,
                                   {from, n * Shape::kN});
    Mma mma(shared, thread, warp, lane);
    mma(steps, accumulators, x, weight, accumulators);
  }

  CUTLASS_DEVICE static Matrix place(Params const& params, int) { return {params.rows, params.columns}; }
};

}  // namespace at
