// The staged epilogue of a convolution that also computes the statistics of its output: the mean of each channel and the
// sum of squared distances from it, for the batch normalization behind it (problem conv2d_statistics).
//
// All blocks of a column of tiles have the same channels. A warp adds up the values and squares of its pixels of a tile,
// in float32, and combines their mean and squared distances with those of its tiles before. At their end the warps of a
// block combine theirs, and the last of kFan blocks those of these blocks; the last of such groups computes the
// statistics. All orders are fixed, so the same input gives the same bits.
//
// Sums cancel only among the 16 kBlocks pixels of a warp in a tile. An output in 16 bits has rounded these values by more
// than what is lost there: its rounding has a variance of (mean 2^-11)^2 / 3, and float32 loses mean^2 2^-24.
#pragma once
#include "sm90/conv2d/conv2d.cuh"
#include "sm90/fragment.cuh"
#include "common/ptx/mbarrier.cuh"

namespace at {

// Mean and sum of squared distances from it, of `count` values.
struct Moments {
  float count = 0.f, mean = 0.f, squares = 0.f;
};

// Combines moments as sums of distances from the first mean. All means are about the same, so nothing cancels.
struct MomentSums {
  float count = 0.f, start = 0.f, distances = 0.f, squares = 0.f;
  AT_DEVICE void add(const Moments& other) {
    if (count == 0.f) start = other.mean;
    const float distance = other.mean - start, weighted = other.count * distance;
    count += other.count, distances += weighted, squares += other.squares + weighted * distance;
  }
  AT_DEVICE Moments total() const {
    const float distance = count > 0.f ? distances / count : 0.f;
    return {count, start + distance, fmaxf(squares - distances * distance, 0.f)};
  }
};

template <typename Config>
struct StatisticsStore : Conv2dStage<Config> {
  using P = Conv2dPlan<Config>;
  using Layout = typename P::Layout;
  using ClusterCoord = typename P::ClusterCoord;
  using Params = typename P::Params;
  using Sums = typename P::Sums;
  using Tile = typename P::Tile;
  using Stage = Conv2dStage<Config>;
  enum { kNormWeight = 3, kNormBias = 4, kStatistics = 5 };  // Conv2dStatistics.operands()
  static constexpr int kFan = 16;                    // blocks whose results one block combines
  static constexpr int kColumns = P::kN / 32;
  static constexpr int kWarps = 4 * P::kGroups;
  static_assert(P::kSlices == 1 && Config::kMerge == 1 && !P::kGated && !P::kFolded, "no such kernel with statistics");

  // Completes what HopperConv2d::prepare() wrote. Each block must stay in its column of tiles.
  template <typename Problem>
  AT_DEVICE static void complete(const Problem& a, at_prepared* out) {
    if (out->status != AT_OK) return;
    const Params& x = *(const Params*)out->params;
    const int clusters = out->grid[0] / P::kCluster;
    if (!x.staging_bytes) return refused(out, "staging must not be 0");
    if (x.along_m || clusters < x.cluster_tiles && clusters % x.cluster_columns.divisor)
      return refused(out, "raster must be 0, and grid 0 or whole columns of tiles");
    if (kSharedBytes > x.fill_slots * x.slot_bytes) return refused(out, "the statistics need more shared memory");
    out->workspace_bytes = Workspace(x, clusters, nullptr).bytes();
  }

 protected:
  static constexpr int kSharedBytes = (kWarps * (2 * P::kN + 1) + 1) * (int)sizeof(float);

  // For each column of tiles: counters of the groups of blocks and of the groups, then the moments of the blocks and of
  // the groups.
  struct Workspace {
    int columns, blocks, groups;
    char* memory;
    AT_DEVICE Workspace(const Params& x, int clusters, void* memory)
        : columns(x.cluster_columns.divisor * P::kClusterN),
          blocks(clusters / x.cluster_columns.divisor * P::kClusterM),
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
    // A row has the means, then the squared distances, then the count.
    AT_DEVICE float* row(int column, int row) const {
      return (float*)(memory + counter_bytes()) + ((int64_t)column * rows() + row) * (2 * P::kN + 1);
    }
  };

  // ---- The moments of a warp's tiles ----

  // Thread `lane` has those of channel 32 column + 8 (lane % 4) + lane / 4 of its tiles; `count` is the warp's.
  struct Own {
    float count = 0.f, mean[kColumns] = {}, squares[kColumns] = {};
  };

  struct Added : Stage::Added {
    int next;  // this warpgroup's next tile
    Own own;
    AT_DEVICE Added(int first) : Stage::Added{first}, next(first) {}
  };

  // Adds up over a warp's eight rows: of eight values, each thread receives the sum of value lane / 4.
  AT_DEVICE static float over_rows(float (&v)[8]) {
#pragma unroll
    for (int half = 4; half; half /= 2) {
      const bool upper = threadIdx.x & 4 * half;
#pragma unroll
      for (int e = 0; e < half; ++e) {
        const float kept = upper ? v[half + e] : v[e], given = upper ? v[e] : v[half + e];
        v[e] = kept + __shfl_xor_sync(0xffffffffu, given, 4 * half);
      }
    }
    return v[0];
  }

  AT_DEVICE static void add_tile(const Params& x, const Tile& tile, int first_block, const Sums& sums, Own& own) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    // The last tile recomputes pixels of the one before, which count once.
    const int first_pixel = P::kPatch ? 0 : tile.m * P::kM;
    bool counts[P::kBlocks][2];
    float pixels = 0.f;
#pragma unroll
    for (int i = 0; i < 2 * P::kBlocks; ++i) {
      const int row = 16 * warp + 8 * (i % 2) + fragment_row(lane);
      counts[i / 2][i % 2] = Stage::output_pixel(x, tile, first_block + i / 2, row) >= first_pixel;
      pixels += counts[i / 2][i % 2];
    }
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) pixels += __shfl_xor_sync(0xffffffffu, pixels, distance);
    if (pixels == 0.f) return;
    const float share = 1.f / pixels, total = own.count + pixels, weight = pixels / total;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      float sum[8] = {}, squares[8] = {};
#pragma unroll
      for (int i = 0; i < 2 * P::kBlocks; ++i) {
        float v[8];
        load_fragment(v, sums, i / 2, i % 2, column);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const float value = counts[i / 2][i % 2] ? v[e] : 0.f;
          sum[e] += value, squares[e] += value * value;
        }
      }
      const float all = over_rows(sum), mean = all * share;
      const float spread = fmaxf(over_rows(squares) - all * mean, 0.f), distance = mean - own.mean[column];
      own.mean[column] += distance * weight;
      own.squares[column] += spread + distance * distance * own.count * weight;
    }
    own.count = total;
  }

  AT_DEVICE static void stage_tile(const Params& x, const Layout& smem, const ClusterCoord& me, const Tile& tile,
                                   int first_block, Sums& sums, Added& added) {
    add_tile(x, tile, first_block, sums, added.own);
    Stage::stage_tile(x, smem, me, tile, first_block, sums, added);
    added.next += P::tile_step() * (P::kPingpong ? P::kGroups : 1);
    if (added.next >= x.cluster_tiles) finish(x, smem, me, tile, added.own);
  }

  // ---- Of blocks ----

  AT_DEVICE static void meet(int warps) {
    if (P::kPingpong && warps == 4) ptx::named_barrier_sync<4, 128>();
    else ptx::named_barrier_sync<3, 32 * kWarps>();
  }

  // Combines the moments of this block's warps, then those of blocks and of groups. Every warp that had a tile calls it.
  AT_DEVICE static void finish(const Params& x, const Layout& smem, const ClusterCoord& me, const Tile& tile,
                               const Own& own) {
    const bool alone = P::kPingpong && P::first_tile() + P::tile_step() >= x.cluster_tiles;  // one warpgroup had a tile
    const int warps = alone ? 4 : kWarps, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* const memory = (float*)__cvta_shared_to_generic(smem.fills);
    float* const counts = memory + kWarps * 2 * P::kN;
    int* const last = (int*)(counts + kWarps);
    meet(warps);  // nobody reads the loads any more
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      float* const to = memory + warp * 2 * P::kN + 32 * column + fragment_channel(lane) + fragment_row(lane);
      to[0] = own.mean[column], to[P::kN] = own.squares[column];
    }
    if (lane == 0) counts[warp] = own.count;
    meet(warps);

    const Workspace workspace(x, gridDim.x / P::kCluster, x.p.p[AT_WORKSPACE]);
    const int block = blockIdx.x / P::kCluster / x.cluster_columns.divisor * P::kClusterM + me.m;
    const int group = block / kFan, in_group = min(workspace.blocks - group * kFan, kFan);
    for (int channel = threadIdx.x; channel < P::kN; channel += 32 * warps) {
      MomentSums all;
      for (int i = 0; i < warps; ++i)
        all.add({counts[i], memory[i * 2 * P::kN + channel], memory[(i * 2 + 1) * P::kN + channel]});
      write(workspace.row(tile.n, block), channel, all.total());
    }
    if (!is_last(workspace.counter(tile.n, group), in_group, last, warps)) return;
    const bool one_group = workspace.groups == 1;
    for (int channel = threadIdx.x; channel < P::kN; channel += 32 * warps) {
      const Moments all = read(workspace, tile.n, group * kFan, in_group, channel);
      if (one_group) store_statistics(x, tile, channel, all);
      else write(workspace.row(tile.n, workspace.blocks + group), channel, all);
    }
    if (one_group || !is_last(workspace.counter(tile.n, workspace.groups), workspace.groups, last, warps)) return;
    for (int channel = threadIdx.x; channel < P::kN; channel += 32 * warps)
      store_statistics(x, tile, channel, read(workspace, tile.n, workspace.blocks, workspace.groups, channel));
  }

  AT_DEVICE static void write(float* row, int channel, const Moments& moments) {
    row[channel] = moments.mean, row[P::kN + channel] = moments.squares;
    if (channel == 0) row[2 * P::kN] = moments.count;
  }

  // The moments of `rows` rows of the workspace.
  AT_DEVICE static Moments read(const Workspace& workspace, int column, int first, int rows, int channel) {
    MomentSums all;
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

  AT_DEVICE static void store_statistics(const Params& x, const Tile& tile, int of_tile, const Moments& all) {
    const int channel = tile.n * P::kN + of_tile;
    if (channel >= x.k) return;
    const float mean = all.mean, factor = 1.f / sqrtf(all.squares / all.count + x.scalars[0]);
    const float scale = __ldg((const float*)x.p.p[kNormWeight] + channel) * factor;
    float* const y = (float*)x.p.p[kStatistics] + channel;
    y[0] = mean;
    y[x.k] = all.squares / fmaxf(all.count - 1.f, 1.f);
    y[2 * x.k] = factor;
    y[3 * x.k] = scale;
    y[4 * x.k] = __ldg((const float*)x.p.p[kNormBias] + channel) - mean * scale;
  }

  // ---- What the direct epilogue has ----

  struct Early {
    AT_DEVICE void begin(const Params&, const ClusterCoord&, const Tile&, int) {}
  };
  AT_DEVICE static void store_tile(const Params&, const ClusterCoord&, const Tile&, Sums&, Early&) {}
};

}  // namespace at
