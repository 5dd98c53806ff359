// Fprop with CUTLASS 2.x: CUTLASS's main loop; an epilogue that passes every vector of accumulators and its coordinates
// to the project's epilogue steps; and split-K over input channels. The last thread block of a split tile adds the
// partial sums, in at least float32 and in a fixed order.
#pragma once
#ifdef __CUDACC_RTC__
#include <cuda/std/cstdint>
#endif
#include "cutlass/cutlass.h"
#include "cutlass/conv/kernel/default_conv2d_fprop.h"
#include "cutlass/conv/kernel/default_conv2d_group_fprop.h"
#include "cutlass/epilogue/threadblock/epilogue_base.h"

namespace at {

// Indices of the pointers: Problem.operands() of conv2d.
enum { kX = 0, kWeight = 1, kY = 2, kFirstStep = 3 };

// Maps a row and column of the accumulators to the output, a row-major matrix: offset in tensors, channel in vectors.
struct Matrix {
  int rows, columns;
  CUTLASS_DEVICE bool operator()(int row, int column, int& channel, int64_t& offset) const {
    channel = column;
    offset = (int64_t)row * columns + column;
    return row < rows && column < columns;
  }
};

using NHWC = cutlass::layout::TensorNHWC;
using GroupMode = cutlass::conv::GroupMode;

template <typename T>
struct Chosen {
  using Epilogue = T;
};

// The types of a kernel, and CUTLASS's default kernel for them.
template <GroupMode Groups, typename Element, typename Stored, typename Accumulator, typename Class, typename Arch,
          typename Threadblock, typename Warp, typename Instruction, int Vector, int Stages, typename Operation,
          cutlass::conv::IteratorAlgorithm Algorithm, int Alignment>
struct Fprop {
  static GroupMode const kGroups = Groups;
  static cutlass::conv::IteratorAlgorithm const kAlgorithm = Algorithm;
  static int const kAlignment = Alignment;
  static cutlass::conv::StrideSupport const kStrided = cutlass::conv::StrideSupport::kStrided;
  using Output = cutlass::epilogue::thread::LinearCombination<Stored, Vector, Accumulator, float>;
  using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<1>;

  template <GroupMode Mode, typename = void>
  struct Choice {
    using Kernel = typename cutlass::conv::kernel::DefaultConv2dGroupFprop<
        Element, NHWC, Element, NHWC, Stored, NHWC, Accumulator, Class, Arch, Threadblock, Warp, Instruction, Output,
        Swizzle, Stages, Operation, Mode, Algorithm, kStrided, Alignment, Alignment>::Kernel;
  };
  template <typename Unused>
  struct Choice<GroupMode::kNone, Unused> {
    using Kernel = typename cutlass::conv::kernel::DefaultConv2dFprop<
        Element, NHWC, Element, NHWC, Stored, NHWC, Accumulator, Class, Arch, Threadblock, Warp, Instruction, Output,
        Swizzle, Stages, Operation, Algorithm, kStrided, Alignment, Alignment>::Kernel;
  };
  using Kernel = typename Choice<Groups>::Kernel;
  using Mma = typename Kernel::Mma;

  // For few channels CUTLASS chooses the epilogue of later tensor cores even on Volta, whose accumulators have another
  // layout.
  template <typename Class_, typename Arch_>
  struct EpilogueOf {
    using type = typename Kernel::Epilogue;
  };
  template <typename Unused>
  struct EpilogueOf<Unused, cutlass::arch::Sm70> {
    using type = typename cutlass::platform::conditional<
        cutlass::platform::is_same<Unused, cutlass::arch::OpClassSimt>::value, Chosen<typename Kernel::Epilogue>,
        cutlass::conv::kernel::detail::DefaultConvEpilogue<cutlass::arch::Sm70, Threadblock, typename Mma::Operator,
                                                           Threadblock::kK / Warp::kK, Output>>::type::Epilogue;
  };
  using Epilogue = typename EpilogueOf<Class, Arch>::type;
};

// Passes accumulators through shared memory like CUTLASS's own epilogue and with its iterators, and applies the steps
// to every vector, so that any chain can be applied. It visits the rows of the output tile in the order of CUTLASS's
// PredicatedTileIterator.
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

  // The same for any output: place(row, column, channel, offset) sets where a vector goes; it returns false outside of
  // the output.
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
      // Warps that split the K of a tile (sliced K) have each stored a partial sum.
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
          for (int e = 0; e < kVector; ++e) v[e] = float(sums[i * kVector + e]);
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

template <typename Conv, typename Element, typename Steps, typename Launch, int SwizzleLimit = 8>
struct ImplicitGemm {
  using Mma = typename Conv::Mma;
  using Shape = typename Mma::Shape;
  using Existing = typename Conv::Epilogue;
  using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<SwizzleLimit>;
  using Epilogue = StepEpilogue<Existing, Element, Steps>;
  static int const kThreads = Conv::Kernel::kThreadCount;
  static int const kAccumulators = Mma::FragmentC::kElements;
  static bool const kFlat = Conv::kAlgorithm == cutlass::conv::IteratorAlgorithm::kFixedChannels ||
                            Conv::kAlgorithm == cutlass::conv::IteratorAlgorithm::kFewChannels;
  using Accumulator = typename Mma::FragmentC::Element;
  // Partial sums are stored in 32 bits, even if the accumulators are half precision.
  using Partial = typename cutlass::platform::conditional<sizeof(Accumulator) == 2, float, Accumulator>::type;
  using Partials = cutlass::AlignedArray<Partial, 4, 16>;

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

  // Launch values: swizzle, log2 of its width; slices, the split-K factor over channels.
  CUTLASS_DEVICE static void prepare(at_conv2d const& a, at_prepared* out) {
    if (char const* reason = why_refused(a)) return refused(out, reason);
    cutlass::conv::Conv2dProblemSize const size(
        a.n, a.h, a.w, a.c, a.k, a.r, a.s, a.p, a.q, a.pad_h, a.pad_w, a.stride_h, a.stride_w, a.dilation_h,
        a.dilation_w, cutlass::conv::Mode::kCrossCorrelation, a.launch[Launch::kSlices], a.groups);
    auto const op = cutlass::conv::Operator::kFprop;
    Params params{size, Mma::IteratorA::getParams(size, NHWC::packed({a.n, a.h, a.w, a.c})),
                  typename Mma::IteratorB::Params(size, NHWC::packed({a.k, a.r, a.s, a.c / a.groups}))};
    params.rows = a.n * a.p * a.q;
    params.columns = a.k;
    params.tiles_m = ceil_div(params.rows, Shape::kM);
    params.tiles_n = ceil_div(params.columns, Shape::kN);
    params.slices = a.launch[Launch::kSlices];
    params.swizzle = a.launch[Launch::kSwizzle];
    params.iterations =
        cutlass::conv::implicit_gemm_k_iterations(op, Shape::kK, size, Conv::kAlgorithm, Conv::kGroups, Shape::kN);
    params.iterations_per_channel = cutlass::conv::implicit_gemm_k_iterations_per_channel(op, size, Conv::kAlgorithm);
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
        cutlass::MatrixCoord(tile.m() * Shape::kM, tile.k() * Shape::kK + first_channel(params.size, tile.n())));
    typename Mma::IteratorB weight(params.weight, params.size, (typename Mma::IteratorB::Element*)params.p.p[kWeight],
                                   thread, cutlass::MatrixCoord(tile.k() * Shape::kK, tile.n() * Shape::kN));
    griddepcontrol_wait();

    Mma mma(shared.main_loop, thread, warp, lane);
    typename Mma::FragmentC accumulators;
    accumulators.clear();
    mma(params.iterations, accumulators, activation, weight, accumulators, params.iterations_per_channel);
    launch_dependents();

    if (params.slices > 1 && !gather_slices(params, tile, accumulators, shared.arrivals)) return;
    Epilogue epilogue(shared.epilogue, tile.m() * Shape::kM, tile.n() * Shape::kN, thread, warp, lane);
    epilogue(accumulators, params.p.p, params.scalars, params.rows, params.columns);
  }

 private:
  // Returns null, or the reason why the problem is refused. autotune/families/cutlass2/conv2d.py has the same
  // rules for problems and configs; this is the last check.
  CUTLASS_DEVICE static char const* why_refused(at_conv2d const& a) {
    int const channels = a.c / a.groups, outputs = a.k / a.groups, slices = a.launch[Launch::kSlices];
    auto const algorithm = Conv::kAlgorithm;
    if (channels % Conv::kAlignment) return "c / groups must be a multiple of the alignment";
    if (a.k % Epilogue::kElementsPerAccess) return "k must be a multiple of the alignment of the output";
    if (slices > 1 && slices * Shape::kK > a.c) return "c must have tile_k channels for each slice";
    if (slices > 1 && (kFlat || a.groups > 1)) return "with few channels or groups, slices must be 1";
    if (algorithm == cutlass::conv::IteratorAlgorithm::kFixedChannels && a.c != Conv::kAlignment)
      return "with fixed channels, c must equal the alignment";
    if (algorithm == cutlass::conv::IteratorAlgorithm::kOptimized && (a.r > 32 || a.s > 32))
      return "the optimized iterator needs a filter of at most 32x32";
    if (Conv::kGroups == GroupMode::kSingleGroup)
      return outputs % Shape::kN ? "k / groups must be a multiple of tile_n" : nullptr;
    if (Conv::kGroups == GroupMode::kMultipleGroup)
      return outputs >= Shape::kN || Shape::kN % outputs ? "k / groups must be smaller than tile_n and divide it"
                                                         : nullptr;
    return a.groups == 1 ? nullptr : "groups must be 1";
  }

  // Returns the first input channel that a column of tiles reads.
  CUTLASS_DEVICE static int first_channel(cutlass::conv::Conv2dProblemSize const& size, int tile_n) {
    if (Conv::kGroups == GroupMode::kNone) return 0;
    return tile_n * Shape::kN / (size.K / size.groups) * (size.C / size.groups);
  }

  CUTLASS_HOST_DEVICE static int64_t counters_bytes(int64_t tiles) { return (tiles * 4 + 255) / 256 * 256; }

  // Writes this slice's sums to the workspace. In the block that arrives last it returns true and the total; the slices
  // are added in their order, whichever block is last. It resets the counter to zero.
  CUTLASS_DEVICE static bool gather_slices(Params const& params, cutlass::gemm::GemmCoord tile,
                                           typename Mma::FragmentC& accumulators, int& arrivals) {
    static_assert(kAccumulators % 4 == 0, "partial sums are moved four at a time");
    int const thread = threadIdx.x;
    int64_t const index = tile.m() + (int64_t)tile.n() * params.tiles_m;
    int64_t const tiles = (int64_t)params.tiles_m * params.tiles_n;
    char* workspace = (char*)params.p.p[AT_WORKSPACE];
    int* counter = (int*)workspace + index;
    int4* partial =
        (int4*)(workspace + counters_bytes(tiles)) + index * params.slices * (kAccumulators / 4) * kThreads + thread;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAccumulators / 4; ++i) {
      Partials const mine = four(accumulators, i);
      partial[(tile.k() * (kAccumulators / 4) + i) * kThreads] = reinterpret_cast<int4 const&>(mine);
    }
    __threadfence();
    __syncthreads();
    if (thread == 0) arrivals = atomicAdd(counter, 1);
    __syncthreads();
    bool const last = arrivals == params.slices - 1;
    __syncthreads();
    if (!last) return false;
    __threadfence();
    if (thread == 0) *counter = 0;
    // Reads its own slice from the workspace as well: all loads of a slice are in flight at once, and the loop stays
    // short.
    Partials totals[kAccumulators / 4];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAccumulators / 4; ++i) totals[i].clear();
    AT_NO_UNROLL for (int slice = 0; slice < params.slices; ++slice, partial += (kAccumulators / 4) * kThreads) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAccumulators / 4; ++i) {
        int4 const word = __ldcg(partial + i * kThreads);
        Partials const& part = reinterpret_cast<Partials const&>(word);
        CUTLASS_PRAGMA_UNROLL
        for (int e = 0; e < 4; ++e) totals[i][e] += part[e];
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAccumulators; ++i) accumulators[i] = Accumulator(totals[i / 4][i % 4]);
    return true;
  }

  CUTLASS_DEVICE static Partials four(typename Mma::FragmentC const& accumulators, int i) {
    Partials result;
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < 4; ++e) result[e] = Partial(accumulators[4 * i + e]);
    return result;
  }
};

}  // namespace at
