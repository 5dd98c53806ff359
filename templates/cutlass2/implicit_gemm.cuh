// An implicit-GEMM convolution from CUTLASS 2.x parts: CUTLASS's main loop, an epilogue that hands every
// vector of accumulators with its place to the steps of this project, and a split over channels whose last
// thread block adds the partial sums in float32 and in a fixed order.
#pragma once
#ifdef __CUDACC_RTC__
#include <cuda/std/cstdint>
#endif
#include "cutlass/cutlass.h"
#include "cutlass/conv/kernel/default_conv2d_fprop.h"
#include "cutlass/epilogue/threadblock/epilogue_base.h"

namespace at {

// Places of the pointers: Problem.operands() of conv2d.
enum { kX = 0, kWeight = 1, kY = 2, kFirstStep = 3 };

// Where a row and a column of accumulators go if the output is a matrix: the offset in tensors, the channel in vectors.
struct Matrix {
  int rows, columns;
  CUTLASS_DEVICE bool operator()(int row, int column, int& channel, int64_t& offset) const {
    channel = column;
    offset = (int64_t)row * columns + column;
    return row < rows && column < columns;
  }
};

// Takes accumulators through shared memory, as CUTLASS's own epilogue does and with its iterators, and hands
// every vector with its coordinates to the steps, so any chain can be applied. Follows the walk of CUTLASS's
// PredicatedTileIterator over the output tile, row for row.
template <typename Existing, typename Element, typename Steps>
class StepEpilogue : public cutlass::epilogue::threadblock::EpilogueBase<
                         typename Existing::Shape, typename Existing::WarpMmaOperator::Shape, Existing::kPartitionsK,
                         typename Existing::AccumulatorFragmentIterator, typename Existing::WarpTileIterator,
                         typename Existing::Padding> {
  using Base = cutlass::epilogue::threadblock::EpilogueBase<
      typename Existing::Shape, typename Existing::WarpMmaOperator::Shape, Existing::kPartitionsK,
      typename Existing::AccumulatorFragmentIterator, typename Existing::WarpTileIterator, typename Existing::Padding>;
  using ThreadMap = typename Existing::OutputTileIterator::ThreadMap;
  using Iterations = typename ThreadMap::Iterations;
  using Loader = typename Existing::SharedLoadIterator;
  static int const kVector = Existing::OutputTileIterator::kElementsPerAccess;
  static int const kSteps = Existing::OutputTileIterator::kIterations;
  static int const kPartitions = Existing::kPartitionsK;
  static int const kPartitionElements = Base::SharedStorage::StorageShape::kCount / kPartitions;

  Loader loader_;
  int row_, column_;

 public:
  using SharedStorage = typename Base::SharedStorage;
  static int const kElementsPerAccess = kVector;

  CUTLASS_DEVICE StepEpilogue(SharedStorage& shared, int first_row, int first_column, int thread, int warp, int lane)
      : Base(shared, thread, warp, lane), loader_(shared.reference(), thread) {
    cutlass::MatrixCoord const offset = ThreadMap::initial_offset(thread);
    row_ = first_row + offset.row();
    column_ = first_column + offset.column();
  }

  CUTLASS_DEVICE void operator()(typename Base::AccumulatorTile const& accumulators, void* const* p,
                                 float const* scalars, int rows, int columns) {
    (*this)(accumulators, p, scalars, Matrix{rows, columns});
  }

  // The same for any output: place(row, column, channel, offset) says where a vector goes, or false.
  template <typename Place>
  CUTLASS_DEVICE void operator()(typename Base::AccumulatorTile const& accumulators, void* const* p,
                                 float const* scalars, Place const& place) {
    typename Existing::AccumulatorFragmentIterator fragments(accumulators);
    int state[2] = {0, 0};
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      typename Existing::AccumulatorFragmentIterator::Fragment fragment;
      fragments.load(fragment);
      ++fragments;
      __syncthreads();
      this->warp_tile_iterator_.store(fragment);
      __syncthreads();

      typename Loader::Fragment sums;
      loader_.load(sums);
      // Warps that share a tile and split its K left a partial sum each.
      CUTLASS_PRAGMA_UNROLL
      for (int i = 1; i < kPartitions; ++i) {
        typename Loader::Fragment partial;
        loader_.add_pointer_offset(kPartitionElements);
        loader_.load(partial);
        sums = cutlass::plus<typename Loader::Fragment>()(sums, partial);
      }
      loader_.add_pointer_offset((1 - kPartitions) * kPartitionElements);

      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Loader::Fragment::kElements / kVector; ++i) {
        int const row_index = i / Iterations::kColumn;
        int const row = row_ + row_index % Iterations::kRow * ThreadMap::Delta::kRow +
                        row_index / Iterations::kRow % Iterations::kGroup * ThreadMap::Delta::kGroup +
                        row_index / (Iterations::kRow * Iterations::kGroup) * ThreadMap::Delta::kCluster;
        int const column = column_ + i % Iterations::kColumn * ThreadMap::Delta::kColumn;
        int channel;
        int64_t offset;
        if (place(row, column, channel, offset)) {
          float v[kVector];
          CUTLASS_PRAGMA_UNROLL
          for (int e = 0; e < kVector; ++e) v[e] = sums[i * kVector + e];
          Steps::apply(v, p, scalars, channel, offset);
          store(v, (Element*)p[kY] + offset);
        }
      }
      advance(state);
    }
  }

 private:
  CUTLASS_DEVICE void advance(int (&state)[2]) {
    using Shape = typename ThreadMap::Shape;
    using Count = typename ThreadMap::Count;
    row_ += Shape::kRow;
    if (++state[0] == Count::kRow) {
      state[0] = 0;
      row_ += (Shape::kGroup - 1) * Shape::kRow * Count::kRow;
      if (++state[1] == Count::kGroup) {
        state[1] = 0;
        row_ += Count::kGroup * Shape::kGroup * Count::kRow * Shape::kRow;
      }
    }
  }
};

template <typename Conv, typename Element, typename Steps, int SwizzleLimit = 8>
struct ImplicitGemm {
  using Mma = typename Conv::Mma;
  using Shape = typename Mma::Shape;
  using Existing = typename Conv::Epilogue;
  using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<SwizzleLimit>;
  using Epilogue = StepEpilogue<Existing, Element, Steps>;
  static int const kThreads = Conv::kThreadCount;
  static int const kAccumulators = Mma::FragmentC::kElements;

  union SharedStorage {
    typename Mma::SharedStorage main_loop;
    typename Epilogue::SharedStorage epilogue;
    int arrivals;
  };

  struct Params {
    cutlass::conv::Conv2dProblemSize size;
    typename Mma::IteratorA::Params activation;
    typename Mma::IteratorB::Params weight;
    int tiles_m, tiles_n, slices, swizzle;
    int iterations, iterations_per_channel;
    int rows, columns;
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // launch[0]: log2 of the swizzle's width; launch[1]: slices of the split over channels.
  CUTLASS_DEVICE static void prepare(at_conv2d const& a, at_prepared* out) {
    if (a.groups != 1 || a.c % Mma::IteratorA::AccessType::kElements || a.k % Epilogue::kElementsPerAccess ||
        a.launch[1] > 1 && a.launch[1] * Shape::kK > a.c)
      return refused(out);
    cutlass::conv::Conv2dProblemSize const size(
        a.n, a.h, a.w, a.c, a.k, a.r, a.s, a.p, a.q, a.pad_h, a.pad_w, a.stride_h, a.stride_w, a.dilation_h,
        a.dilation_w, cutlass::conv::Mode::kCrossCorrelation, a.launch[1], 1);
    auto const op = cutlass::conv::Operator::kFprop;
    Params params{
        size,
        Mma::IteratorA::getParams(size, cutlass::layout::TensorNHWC::packed({a.n, a.h, a.w, a.c})),
        typename Mma::IteratorB::Params(size, cutlass::layout::TensorNHWC::packed({a.k, a.r, a.s, a.c}))};
    params.rows = a.n * a.p * a.q;
    params.columns = a.k;
    params.tiles_m = ceil_div(params.rows, Shape::kM);
    params.tiles_n = ceil_div(params.columns, Shape::kN);
    params.slices = a.launch[1];
    params.swizzle = a.launch[0];
    params.iterations = cutlass::conv::implicit_gemm_k_iterations(op, Shape::kK, size, Conv::kIteratorAlgorithm);
    params.iterations_per_channel =
        cutlass::conv::implicit_gemm_k_iterations_per_channel(op, size, Conv::kIteratorAlgorithm);
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.scalars[i] = a.scalars[i];
    int64_t const tiles = (int64_t)params.tiles_m * params.tiles_n;
    int64_t const workspace =
        params.slices > 1 ? counters_bytes(tiles) + tiles * params.slices * kThreads * kAccumulators * 4 : 0;
    int const width = 1 << params.swizzle;
    prepared(out, params, params.tiles_m * width, ceil_div(params.tiles_n, width), params.slices, kThreads,
             sizeof(SharedStorage), workspace);
  }

  CUTLASS_DEVICE static void run(Params const& params, SharedStorage& shared) {
    auto const tile = Swizzle::get_tile_offset(params.swizzle);
    if (tile.m() >= params.tiles_m || tile.n() >= params.tiles_n) return;
    int const thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync(), lane = thread % 32;
    typename Mma::IteratorA activation(
        params.activation, params.size, (typename Mma::IteratorA::Element*)params.p.p[kX], thread,
        cutlass::MatrixCoord(tile.m() * Shape::kM, tile.k() * Shape::kK));
    typename Mma::IteratorB weight(
        params.weight, params.size, (typename Mma::IteratorB::Element*)params.p.p[kWeight], thread,
        cutlass::MatrixCoord(tile.k() * Shape::kK, tile.n() * Shape::kN));
    wait_for_previous();

    Mma mma(shared.main_loop, thread, warp, lane);
    typename Mma::FragmentC accumulators;
    accumulators.clear();
    mma(params.iterations, accumulators, activation, weight, accumulators, params.iterations_per_channel);
    launch_next();

    if (params.slices > 1 && !gather_slices(params, tile, accumulators, shared.arrivals)) return;
    Epilogue epilogue(shared.epilogue, tile.m() * Shape::kM, tile.n() * Shape::kN, thread, warp, lane);
    epilogue(accumulators, params.p.p, params.scalars, params.rows, params.columns);
  }

 private:
  CUTLASS_HOST_DEVICE static int64_t counters_bytes(int64_t tiles) { return (tiles * 4 + 255) / 256 * 256; }

  // Leaves this slice's sums in the workspace; returns true, with the total, in the block that arrives last.
  // The order of the addition is that of the slices, whoever adds; the counter is left at zero.
  CUTLASS_DEVICE static bool gather_slices(Params const& params, cutlass::gemm::GemmCoord tile,
                                           typename Mma::FragmentC& accumulators, int& arrivals) {
    static_assert(kAccumulators % 4 == 0, "partial sums are moved four at a time");
    int const thread = threadIdx.x;
    int64_t const index = tile.m() + (int64_t)tile.n() * params.tiles_m;
    int64_t const tiles = (int64_t)params.tiles_m * params.tiles_n;
    char* workspace = (char*)params.p.p[AT_WORKSPACE];
    int* counter = (int*)workspace + index;
    float4* partial = (float4*)(workspace + counters_bytes(tiles)) +
                      index * params.slices * (kAccumulators / 4) * kThreads + thread;
    float4* mine = reinterpret_cast<float4*>(&accumulators);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAccumulators / 4; ++i)
      partial[(tile.k() * (kAccumulators / 4) + i) * kThreads] = mine[i];
    __threadfence();
    __syncthreads();
    if (thread == 0) arrivals = atomicAdd(counter, 1);
    __syncthreads();
    bool const last = arrivals == params.slices - 1;
    __syncthreads();
    if (!last) return false;
    __threadfence();
    if (thread == 0) *counter = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAccumulators / 4; ++i) {
      float4 const own = mine[i];
      float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
      for (int slice = 0; slice < params.slices; ++slice) {
        float4 const part =
            slice == tile.k() ? own : __ldcg(partial + (slice * (kAccumulators / 4) + i) * kThreads);
        total.x += part.x;
        total.y += part.y;
        total.z += part.z;
        total.w += part.w;
      }
      mine[i] = total;
    }
    return true;
  }
};

}  // namespace at
