// A tile scheduler for the persistent kernels of CUTLASS 3.x. Run-time values of one binary select whole tiles, slices
// of tiles (split-K) or equal shares of all steps (stream-K) per cluster. A step is tile_k of K for the tiles of a
// cluster.
//
// The block that writes its partial sums last adds them up in the order of the steps: the same input gives the same
// bits, and no block waits for another. All counters are zero again at the end.
#pragma once
#include "cutlass/arch/barrier.h"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"
#include "cutlass3/share.h"

namespace at {

struct Dealt {};  // the scheduler tag for CUTLASS's TileSchedulerSelector

template <int kClusterM, int kClusterN>
class DealtTiles {
  static constexpr int kPeers = kClusterM * kClusterN;

 public:
  static constexpr bool IsDynamicPersistent = false;
  using Pipeline = cutlass::PipelineEmpty;
  using ThrottlePipeline = cutlass::PipelineEmpty;
  struct CLCResponse {};
  struct Arguments {};
  struct SharedStorage {
    CUTLASS_DEVICE typename Pipeline::SharedStorage pipeline() { return {}; }
    CUTLASS_DEVICE typename ThrottlePipeline::SharedStorage throttle_pipeline() { return {}; }
    CUTLASS_DEVICE CLCResponse* data() { return nullptr; }
  };

  struct Params : Deal {
    int to_pointers;  // bytes from this struct to the launch's at_pointers
    int arrivals;     // offset of one int in shared memory
    CUTLASS_DEVICE int64_t counters_bytes() const { return ((int64_t)streamed * kPeers * 4 + 255) / 256 * 256; }
    CUTLASS_DEVICE int64_t workspace_bytes(int64_t sums_a_tile) const {
      return streamed ? counters_bytes() + (int64_t)blocks * slots * kPeers * sums_a_tile * 4 : 0;
    }
  };

  struct WorkTileInfo {
    int M_idx = 0, N_idx = 0, K_idx = 0, L_idx = 0;
    uint32_t k_tile_count = 0;
    int tile = 0;           // index in tiles of clusters
    bool finishes = false;  // whether this block has the tile's total and runs the epilogue
    CUTLASS_HOST_DEVICE bool is_valid() const { return k_tile_count > 0; }
    CUTLASS_HOST_DEVICE int reduction_subtile_idx() const { return -1; }
  };

  CUTLASS_DEVICE explicit DealtTiles(Params const& x) : x_(x), share_(x, blockIdx.x / kClusterM) {}

  template <typename Cluster>
  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(Cluster) const {
    return get_current_work();
  }

  CUTLASS_DEVICE WorkTileInfo get_current_work() const {
    Piece const piece = share_.current();
    int m, n;
    x_.coordinates(piece.tile, m, n);
    dim3 const own = cute::block_id_in_cluster();
    WorkTileInfo work;
    work.M_idx = m * kClusterM + own.x;
    work.N_idx = n * kClusterN + own.y;
    work.K_idx = piece.first;
    work.k_tile_count = piece.steps;
    work.tile = piece.tile;
    work.finishes = piece.steps == x_.steps;
    return work;
  }

  CUTLASS_DEVICE void advance_to_next_work(int count = 1) {
    for (; count > 0; --count) share_.advance();
  }

  CUTLASS_DEVICE bool is_last_tile(WorkTileInfo const&, int count = 1) const {
    Share ahead = share_;
    for (; count > 0; --count) ahead.advance();
    return ahead.current().steps == 0;
  }

  template <typename... Pipelines>
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo, Pipelines const&...) {
    advance_to_next_work();
    return cute::make_tuple(get_current_work(), true);
  }

  template <typename Problem, typename Tile>
  CUTLASS_DEVICE static int get_work_k_tile_count(WorkTileInfo const& work, Problem const&, Tile const&) {
    return work.k_tile_count;
  }
  CUTLASS_DEVICE static int get_work_k_tile_start(WorkTileInfo const& work) { return work.K_idx; }
  CUTLASS_DEVICE static bool valid_warpgroup_in_work_tile(WorkTileInfo const&) { return true; }
  CUTLASS_DEVICE static bool requires_separate_reduction(Params const&) { return false; }
  CUTLASS_DEVICE static bool compute_epilogue(WorkTileInfo const& work, Params const&) { return work.finishes; }

  // Called by all threads of the consumer warpgroups. Writes this block's part of a tile to the workspace; the block
  // that is last reads the total.
  template <typename Sums>
  CUTLASS_DEVICE static void fixup(Params const& x, WorkTileInfo& work, Sums& sums, uint32_t groups, uint32_t) {
    if (work.finishes) return;
    constexpr int kWords = decltype(cute::size(sums))::value / 4;
    int const threads = groups * cutlass::NumThreadsPerWarpGroup, thread = threadIdx.x % threads;
    int const rank = cute::block_rank_in_cluster(), cluster = blockIdx.x / kClusterM;
    int const from = x.owner((int64_t)work.tile * x.steps), to = x.owner((int64_t)(work.tile + 1) * x.steps - 1);
    auto const& pointers = *reinterpret_cast<at_pointers const*>(reinterpret_cast<char const*>(&x) + x.to_pointers);
    char* const workspace = (char*)pointers.p[AT_WORKSPACE];
    int* const counter = (int*)workspace + (int64_t)work.tile * kPeers + rank;
    float4* const partials = (float4*)(workspace + x.counters_bytes()) + thread;
    auto const part = [&](int owner) {
      return partials + (x.slot(owner, work.tile) * kPeers + rank) * kWords * threads;
    };
    auto const together = [&] {
      cutlass::arch::NamedBarrier::sync(threads, cutlass::arch::ReservedNamedBarriers::StreamkBarrier0);
    };
    int& arrivals = *reinterpret_cast<int*>(at_shared + x.arrivals);

    griddepcontrol_wait();
    float4* const mine = part(cluster);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kWords; ++i)
      mine[i * threads] = make_float4(sums(4 * i), sums(4 * i + 1), sums(4 * i + 2), sums(4 * i + 3));
    __threadfence();
    together();
    if (thread == 0) arrivals = atomicAdd(counter, 1);
    together();
    work.finishes = arrivals == to - from;
    if (!work.finishes) return;
    __threadfence();
    if (thread == 0) *counter = 0;
    cute::clear(sums);
    for (int owner = from; owner <= to; ++owner) {
      float4 const* const other = part(owner);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWords; ++i) {
        float4 const word = __ldcg(other + i * threads);
        sums(4 * i) += word.x, sums(4 * i + 1) += word.y, sums(4 * i + 2) += word.z, sums(4 * i + 3) += word.w;
      }
    }
  }

 private:
  Params const& x_;
  Share share_;
};

}  // namespace at

template <typename TileShape, typename ClusterShape, uint32_t kStages>
struct cutlass::gemm::kernel::detail::TileSchedulerSelector<at::Dealt, cutlass::arch::Sm90, TileShape, ClusterShape,
                                                            kStages> {
  using Scheduler = at::DealtTiles<cute::size<0>(ClusterShape{}), cute::size<1>(ClusterShape{})>;
};
