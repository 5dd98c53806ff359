// The staged epilogue of a convolution that also computes totals of each channel over all pixels: the part that its
// kinds share (statistics.cuh, gradient_sums.cuh).
//
// All blocks of a column of tiles have the same channels. A warp keeps the totals of its tiles. At their end the warps
// of a block combine theirs, and the last of kFan blocks those of these blocks; the last of such groups combines the
// groups' and computes the results. All orders are fixed, so the same input gives the same bits.
#pragma once
#include "sm90/conv2d/stage.cuh"
#include "sm90/fragment.cuh"
#include "common/ptx/mbarrier.cuh"

namespace at {

// Two values of a channel, which follow from `count` pixels.
struct Total {
  float count = 0.f, first = 0.f, second = 0.f;
};

// Kind: combines totals: add(Total), total(). Derived:
//   add_tile(params, tile, first_block, accum, own)  adds a tile to the totals of a warp, and may change what is stored
//   store_total(params, channel, total)              writes the results of a channel
template <typename Config, typename Kind, typename Derived>
struct ColumnTotals : Conv2dStage<Config> {
  using P = Conv2dPlan<Config>;
  using Layout = typename P::Layout;
  using ClusterCoord = typename P::ClusterCoord;
  using Params = typename P::Params;
  using Accum = typename P::Accum;
  using Tile = typename P::Tile;
  using Stage = Conv2dStage<Config>;
  static constexpr int kFan = 16;  // blocks whose totals one block combines
  static constexpr int kColumns = P::kN / 32;
  static constexpr int kWarps = 4 * P::kGroups;
  static_assert(P::kSlices == 1 && Config::kMerge == 1 && !Config::kGated && P::kHidden == 0,
                "no such kernel with totals");

  // Completes what HopperConv2d::prepare() wrote. Each block must stay in its column of tiles.
  AT_DEVICE static void complete(at_prepared* out) {
    if (out->status != AT_OK) return;
    const Params& params = *reinterpret_cast<const Params*>(out->params);
    const int clusters = out->grid[0] / P::kCluster;
    if (!params.staging_bytes) return refused(out, "staging must not be 0");
    if (params.along_m || clusters < params.cluster_tiles && clusters % params.cluster_columns.divisor)
      return refused(out, "raster must be 0, and grid 0 or whole columns of tiles");
    if (kSharedBytes > params.activation_stages * params.stage_bytes)
      return refused(out, "the totals need more shared memory");
    out->workspace_bytes = Workspace(params, clusters, nullptr).bytes();
  }

  static constexpr int kSharedBytes = (kWarps * (2 * P::kN + 1) + 1) * (int)sizeof(float);

  // For each column of tiles: counters of the groups of blocks and of the groups, then the totals of the blocks and of
  // the groups.
  struct Workspace {
    int columns, blocks, groups;
    char* memory;
    AT_DEVICE Workspace(const Params& params, int clusters, void* memory)
        : columns(params.cluster_columns.divisor * P::kClusterN),
          blocks(clusters / params.cluster_columns.divisor * P::kClusterM),
          groups((blocks + kFan - 1) / kFan),
          memory((char*)memory) {}
    AT_DEVICE int rows() const { return blocks + groups; }
    AT_DEVICE int64_t counter_bytes() const {
      return ceil_div(columns * (int64_t)(groups + 1) * sizeof(int), 128) * 128;
    }
    AT_DEVICE int64_t bytes() const {
      return counter_bytes() + (int64_t)columns * rows() * (2 * P::kN + 1) * sizeof(float);
    }
    AT_DEVICE int* counter(int column, int group) const { return (int*)memory + column * (groups + 1) + group; }
    // A row has the first values of all channels, then the second ones, then the count.
    AT_DEVICE float* row(int column, int row) const {
      return (float*)(memory + counter_bytes()) + ((int64_t)column * rows() + row) * (2 * P::kN + 1);
    }
  };

  // The totals of a warp's tiles. A thread has those of channel 32 column + 8 (lane % 4) + lane / 4; `count` is the
  // warp's.
  struct Own {
    float count = 0.f, first[kColumns] = {}, second[kColumns] = {};
  };

  struct Added : Stage::Added {
    int next;  // this warpgroup's next tile
    Own own;
    AT_DEVICE Added(int first) : Stage::Added{first}, next(first) {}
  };

  AT_DEVICE static void stage_tile(const Params& params, const Layout& smem, const ClusterCoord& cta, const Tile& tile,
                                   int first_block, Accum& accum, Added& added) {
    Derived::add_tile(params, tile, first_block, accum, added.own);
    Stage::stage_tile(params, smem, cta, tile, first_block, accum, added);
    added.next += Stage::Schedule::tile_step();
    if (added.next >= params.cluster_tiles) finish(params, smem, cta, tile, added.own);
  }

  // ---- For add_tile ----

  // A thread's pixels of a tile; -1 outside of the output. They count once: the last tile recomputes some of the one
  // before.
  struct Pixels {
    int at[P::kBlocks][2];
    bool counts[P::kBlocks][2];
    float in_warp = 0.f;  // pixels of the warp that count
    AT_DEVICE Pixels(const Params& params, const Tile& tile, int first_block) {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, first = P::kPatch ? 0 : tile.m * P::kM;
      AT_UNROLL for (int i = 0; i < 2 * P::kBlocks; ++i) {
        const int row = 16 * warp + 8 * (i % 2) + fragment_row(lane);
        at[i / 2][i % 2] = Stage::output_pixel(params, tile, first_block + i / 2, row);
        counts[i / 2][i % 2] = at[i / 2][i % 2] >= first;
        in_warp += counts[i / 2][i % 2];
      }
      AT_UNROLL for (int distance = 4; distance < 32; distance *= 2)
        in_warp += __shfl_xor_sync(0xffffffffu, in_warp, distance);
    }
  };

  // Adds up over a warp's eight rows: of eight values, each thread receives the sum of value lane / 4.
  AT_DEVICE static float over_rows(float (&v)[8]) {
    AT_UNROLL for (int half = 4; half; half /= 2) {
      const bool upper = threadIdx.x & 4 * half;
      AT_UNROLL for (int e = 0; e < half; ++e) {
        const float kept = upper ? v[half + e] : v[e], given = upper ? v[e] : v[half + e];
        v[e] = kept + __shfl_xor_sync(0xffffffffu, given, 4 * half);
      }
    }
    return v[0];
  }

  // ---- Of blocks ----

  AT_DEVICE static void meet(int warps) {
    if (P::kPingpong && warps == 4) ptx::named_barrier_sync<4, 128>();
    else ptx::named_barrier_sync<3, 32 * kWarps>();
  }

  // Combines the totals of this block's warps, then those of blocks and of groups. Every warp that had a tile calls it.
  AT_DEVICE static void finish(const Params& params, const Layout& smem, const ClusterCoord& cta, const Tile& tile,
                               const Own& own) {
    const bool alone =
        P::kPingpong && P::first_tile() + P::tile_step() >= params.cluster_tiles;  // one warpgroup had a tile
    const int warps = alone ? 4 : kWarps, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* const memory = (float*)__cvta_shared_to_generic(smem.activations);
    float* const counts = memory + kWarps * 2 * P::kN;
    int* const last = (int*)(counts + kWarps);
    meet(warps);  // nobody reads the loads any more
    AT_UNROLL for (int column = 0; column < kColumns; ++column) {
      float* const to = memory + warp * 2 * P::kN + 32 * column + fragment_channel(lane) + fragment_row(lane);
      to[0] = own.first[column], to[P::kN] = own.second[column];
    }
    if (lane == 0) counts[warp] = own.count;
    meet(warps);

    const Workspace workspace(params, gridDim.x / P::kCluster, params.p.p[AT_WORKSPACE]);
    const int block = blockIdx.x / P::kCluster / params.cluster_columns.divisor * P::kClusterM + cta.m;
    const int group = block / kFan, in_group = min(workspace.blocks - group * kFan, kFan);
    for (int channel = threadIdx.x; channel < P::kN; channel += 32 * warps) {
      Kind all;
      for (int i = 0; i < warps; ++i)
        all.add({counts[i], memory[i * 2 * P::kN + channel], memory[(i * 2 + 1) * P::kN + channel]});
      write(workspace.row(tile.n, block), channel, all.total());
    }
    if (!is_last(workspace.counter(tile.n, group), in_group, last, warps)) return;
    const bool one_group = workspace.groups == 1;
    for (int channel = threadIdx.x; channel < P::kN; channel += 32 * warps) {
      const Total all = read(workspace, tile.n, group * kFan, in_group, channel);
      if (one_group) store(params, tile, channel, all);
      else write(workspace.row(tile.n, workspace.blocks + group), channel, all);
    }
    if (one_group || !is_last(workspace.counter(tile.n, workspace.groups), workspace.groups, last, warps)) return;
    for (int channel = threadIdx.x; channel < P::kN; channel += 32 * warps)
      store(params, tile, channel, read(workspace, tile.n, workspace.blocks, workspace.groups, channel));
  }

  AT_DEVICE static void store(const Params& params, const Tile& tile, int channel, const Total& all) {
    if (tile.n * P::kN + channel < params.k) Derived::store_total(params, tile.n * P::kN + channel, all);
  }

  AT_DEVICE static void write(float* row, int channel, const Total& total) {
    row[channel] = total.first, row[P::kN + channel] = total.second;
    if (channel == 0) row[2 * P::kN] = total.count;
  }

  // The total of `rows` rows of the workspace.
  AT_DEVICE static Total read(const Workspace& workspace, int column, int first, int rows, int channel) {
    Kind all;
#pragma unroll 8
    for (int i = 0; i < rows; ++i) {
      const float* const row = workspace.row(column, first + i);
      all.add({row[2 * P::kN], row[channel], row[P::kN + channel]});
    }
    return all.total();
  }

  // Counts this block; true in the last of `blocks`. It resets the counter for the next launch.
  AT_DEVICE static bool is_last(int* counter, int blocks, int* flag, int warps) {
    __threadfence();
    meet(warps);
    if (threadIdx.x == 0) {
      const int arrived = atomicAdd(counter, 1);
      if (arrived == blocks - 1) *counter = 0;
      *flag = arrived == blocks - 1;
    }
    meet(warps);
    __threadfence();
    return *flag;
  }

  // ---- What the direct epilogue has ----

  struct Early {
    AT_DEVICE void begin(const Params&, const ClusterCoord&, const Tile&, int) {}
  };
  AT_DEVICE static void store_tile(const Params&, const ClusterCoord&, const Tile&, Accum&, Early&) {}
};

}  // namespace at
