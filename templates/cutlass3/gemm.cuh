// A GEMM with CUTLASS 3.x for Hopper: x (m, k) times the transpose of weight (n, k), both with k innermost. TMA loads
// both operands, wgmma multiplies, and the epilogue stores through shared memory with TMA.
#pragma once
#include "cutlass3/common.cuh"
#include "cutlass3/scheduler.cuh"

namespace at {

enum class Schedule3 {
  kBasic,        // one tile per block, one warpgroup
  kPingpong,     // two warpgroups, each with its own tile; main loop and epilogue alternate
  kCooperative,  // two warpgroups that share a tile
};

// Config: Element, Steps, kSource (pointer of the tensor that the epilogue loads by TMA; 0: none), the tile kM x kN x
// kK, kEpilogueN, kClusterM, kClusterN, kStages, kSchedule.
template <typename Config_>
struct Gemm3 {
  struct Config : Config_ {
    static constexpr int kAlignment = 16 / sizeof(typename Config_::Element);
  };
  using Element = typename Config::Element;
  using Launch = typename Config::Launch;
  static constexpr Schedule3 kSchedule = Config::kSchedule;
  static constexpr bool kBasic = kSchedule == Schedule3::kBasic, kCooperative = kSchedule == Schedule3::kCooperative;
  using Tile = cute::Shape<cute::Int<Config::kM>, cute::Int<Config::kN>, cute::Int<Config::kK>>;
  using Cluster = cute::Shape<cute::Int<Config::kClusterM>, cute::Int<Config::kClusterN>, cute::_1>;
  using Row = cutlass::layout::RowMajor;
  using Column = cutlass::layout::ColumnMajor;
  using Epilogue =
      StepEpilogue<Config, Tile, cute::Shape<cute::Int<kCooperative ? 128 : 64>, cute::Int<Config::kEpilogueN>>,
                   cute::conditional_t<kCooperative, cutlass::epilogue::TmaWarpSpecializedCooperative,
                                       cutlass::epilogue::TmaWarpSpecialized>,
                   Row>;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, Row, Config::kAlignment, Element, Column,
      Config::kAlignment, float, Tile, Cluster, cutlass::gemm::collective::StageCount<Config::kStages>,
      cute::conditional_t<kBasic, cutlass::gemm::KernelTmaWarpSpecialized,
                          cute::conditional_t<kCooperative, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                                              cutlass::gemm::KernelTmaWarpSpecializedPingpong>>>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue,
                                                      cute::conditional_t<kBasic, void, Dealt>>;
  using Params = typename Kernel::Params;
  static constexpr int kThreads = Kernel::MaxThreadsPerBlock;
  static constexpr int kSharedBytes = Kernel::SharedStorageSize + 16;  // plus the scheduler's `arrivals`

  // Launch values: swizzle, log2 of its width; slices, per tile; stream = 1 shares all steps among the multiprocessors
  // (stream-K).
  CUTLASS_DEVICE static void prepare(at_conv2d const& a, at_prepared* out) {
    Preparing<Kernel> preparing(a.scalars, out);
    Params& params = preparing.params;
    int const rows = a.n * a.h * a.w, columns = a.k, depth = a.c;
    bool const plain =
        a.r == 1 && a.s == 1 && a.groups == 1 && a.stride_h == 1 && a.stride_w == 1 && a.pad_h == 0 && a.pad_w == 0;
    if (!plain) return refused(out, "the convolution must be 1x1 with stride 1, no padding and one group");
    if (depth % Config::kAlignment || columns % Config::kAlignment)
      return refused(out, "c and k (k and n of a GEMM) must be multiples of the alignment");
    describe_operands(params, out->tensor_maps, rows, columns, depth);
    out->tensor_map_count = 2;
    preparing.describe_output(output(rows, columns), Config::kSource);
    params.problem_shape = cute::make_shape(rows, columns, depth, 1);
    int const tiles_m = ceil_div(ceil_div(rows, Config::kM), Config::kClusterM);
    int const tiles_n = ceil_div(ceil_div(columns, Config::kN), Config::kClusterN);
    if constexpr (kBasic) {
      if (a.launch[Launch::kSwizzle] || a.launch[Launch::kSlices] != 1 || a.launch[Launch::kStream])
        return refused(out, "this schedule has no swizzle, slices or stream-K: 0, 1 and 0");
      if (tiles_n * Config::kClusterN > 65535) return refused(out, "k has more tiles than a grid's second dimension");
      preparing.launch(tiles_m * Config::kClusterM, tiles_n * Config::kClusterN, kSharedBytes, 0);
    } else {
      constexpr int kPeers = Config::kClusterM * Config::kClusterN;
      auto& deal = params.scheduler;
      deal.tiles_m = tiles_m, deal.tiles_n = tiles_n, deal.steps = ceil_div(depth, Config::kK);
      deal.swizzle = a.launch[Launch::kSwizzle];
      bool const split = a.launch[Launch::kSlices] > 1 || a.launch[Launch::kStream];
      // Pingpong warpgroups, and a warpgroup that has loaded the epilogue's source, cannot know in time which block is
      // last.
      if (split && (!kCooperative || Config::kSource > 0))
        return refused(out, "slices and stream-K need the cooperative schedule and an epilogue that reads no tensor");
      // Clusters of more than 2 blocks leave some of the 14 to 18 multiprocessors of each GPC idle.
      // Architecture.processors_for has the same factor.
      int const clusters = (kPeers > 2 ? processors() * 10 / 11 : processors()) / kPeers;
      if (!split) deal.persist(clusters);
      else if (!deal.deal(a.launch[Launch::kSlices], a.launch[Launch::kStream] * clusters))
        return refused(out, "slices must be between 1 and the steps of a tile, and 1 with stream-K");
      deal.arrivals = Kernel::SharedStorageSize;
      deal.to_pointers = (int)((char const*)&params.epilogue.thread.p - (char const*)&deal);
      preparing.launch(deal.blocks * Config::kClusterM, Config::kClusterN, kSharedBytes,
                       deal.workspace_bytes((int64_t)Config::kM * Config::kN));
    }
  }

  template <typename Params>
  CUTLASS_HOST_DEVICE static void describe_operands(Params& params, at_tensor_map* maps, int rows, int columns,
                                                    int depth) {
    using A = typename Mainloop::InternalElementA;
    using B = typename Mainloop::InternalElementB;
    int64_t const along = depth;
    describe_tiled(maps[0], params.mainloop.tma_load_a,
                   cute::make_tensor(static_cast<A const*>(nullptr), cute::make_shape(rows, depth, 1),
                                     cute::make_stride(along, cute::_1{}, along * rows)),
                   kA, Config::kClusterN, &params);
    describe_tiled(maps[1], params.mainloop.tma_load_b,
                   cute::make_tensor(static_cast<B const*>(nullptr), cute::make_shape(columns, depth, 1),
                                     cute::make_stride(along, cute::_1{}, along * columns)),
                   kB, Config::kClusterM, &params);
  }

  CUTLASS_HOST_DEVICE static auto output(int rows, int columns) {
    return cute::make_tensor(static_cast<Element const*>(nullptr), cute::make_shape(rows, columns, 1),
                             cute::make_stride((int64_t)columns, cute::_1{}, (int64_t)columns * rows));
  }

  CUTLASS_DEVICE static void run(Params const& params, char* shared) { Kernel{}(params, shared); }

 private:
  CUTLASS_DEVICE static int processors() {
    int count;
    asm("mov.u32 %0, %%nsmid;" : "=r"(count));
    return count;
  }
};

}  // namespace at
