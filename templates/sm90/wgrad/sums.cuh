// The end of a weight gradient: the sums of all blocks that share a tile's pixels, the steps, and the result.
//
// A block leaves its sums in shared memory, a row of kN channels for each output channel of each tap. The blocks of a
// cluster add them through distributed shared memory, each for a part of the tile. With several clusters a tile these
// add through a workspace: the last one to arrive adds all, in fixed order, so results have the same bits in each run.
#pragma once
#include "common/ptx/cluster.cuh"
#include "common/ptx/distributed_shared_memory.cuh"
#include "common/ptx/shared_memory.cuh"

namespace at {

// P: the plan, with the sizes, Params, the Layout of shared memory and the Tile of a block.
template <typename P>
struct WgradSums : P {
  using Params = typename P::Params;
  using Layout = typename P::Layout;
  using Tile = typename P::Tile;

  AT_DEVICE static uint32_t sum_row(const Layout& smem, int row) { return smem.sums + row * (P::kSumPitch * 4); }

  // Stores the kN columns of a product in shared memory, from accumulator `first` on. to: the address of the thread's
  // row and first columns.
  template <int kSums>
  AT_DEVICE static void store_columns(uint32_t to, const float (&sums)[kSums], int first) {
    AT_UNROLL for (int i = 0; i < P::kN / 2; i += 2)
      ptx::st_shared(to + i % 4 / 2 * 8 * P::kSumPitch * 4 + i / 4 * 32,
                     make_float2(sums[first + i], sums[first + i + 1]));
  }

  // Adds the sums of all blocks, each for its part of the tile. All threads call it, with the block's sums in shared
  // memory.
  AT_DEVICE static void finish(const Params& params, const Layout& smem, const Tile& tile) {
    if constexpr (P::kSlices > 1) {
      ptx::cluster_arrive_release();
      ptx::cluster_wait_acquire();
    } else {
      __syncthreads();
    }
    add_blocks(params, smem, tile);
    // Until here others read this block's shared memory, or arrive at its barriers.
    if constexpr (P::kClusterBlocks > 1) ptx::cluster_sync();
  }

 private:
  // A thread has four neighbouring columns of each kRows-th row. It loads several rows before it stores the first, so
  // that the latencies of its loads overlap.
  static constexpr int kRows = P::kThreads / P::kRowVectors, kThreadRows = (P::kShareRows + kRows - 1) / kRows;
  static constexpr int kAhead = kThreadRows < 8 ? kThreadRows : 8;
  using Rows = float[kAhead][P::kVector];

  AT_DEVICE static void add_blocks(const Params& params, const Layout& smem, const Tile& tile) {
    const int vector = threadIdx.x % P::kRowVectors, column = P::kVector * vector;
    const int begin = threadIdx.x < kRows * P::kRowVectors ? threadIdx.x / P::kRowVectors : P::kShareRows;
    const int first = tile.slice * P::kShareRows;
    const typename P::Place place(params, tile, column);
    float4* const partial = partial_sums(params, tile, tile.split, first) + vector;
    AT_NO_UNROLL for (int row = begin; row < P::kShareRows; row += kAhead * kRows) {
      Rows v = {};
      // Each block begins with its own sums, so that not all read from the same block.
      AT_UNROLL for (int j = 0; j < P::kSlices; ++j) {
        const int block = tile.rank((tile.slice + j) % P::kSlices);
        AT_UNROLL for (int i = 0; i < kAhead; ++i)
          add(v[i], block_sums(smem, first + row_of(row, i), column, block));
      }
      AT_UNROLL for (int i = 0; i < kAhead; ++i) {
        if (row + i * kRows >= P::kShareRows) break;
        if (params.splits == 1) store_vector(params, place, first + row + i * kRows, v[i]);
        else partial[(row + i * kRows) * P::kRowVectors] = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
      }
    }
    if (params.splits > 1 && is_last(params, tile)) {
      const int64_t next = (int64_t)P::tile_count(params) * P::kSumRows * P::kRowVectors;  // from one split to the next
      const float4* const sums = partial_sums(params, tile, 0, first) + vector;
      AT_NO_UNROLL for (int row = begin; row < P::kShareRows; row += kAhead * kRows) {
        Rows v = {};
#pragma unroll 2
        for (int split = 0; split < params.splits; ++split) AT_UNROLL
          for (int i = 0; i < kAhead; ++i) add(v[i], sums[split * next + row_of(row, i) * P::kRowVectors]);
        AT_UNROLL for (int i = 0; i < kAhead; ++i)
          if (row + i * kRows < P::kShareRows) store_vector(params, place, first + row + i * kRows, v[i]);
      }
    }
  }

  // The i-th of the rows that a thread loads at once; the last one for those beyond.
  AT_DEVICE static int row_of(int row, int i) { return min(row + i * kRows, P::kShareRows - 1); }

  AT_DEVICE static void add(float (&v)[P::kVector], float4 other) {
    v[0] += other.x, v[1] += other.y, v[2] += other.z, v[3] += other.w;
  }

  AT_DEVICE static float4 block_sums(const Layout& smem, int row, int column, int block) {
    const uint32_t address = sum_row(smem, row) + 4 * column;
    if constexpr (P::kSlices > 1) return ptx::ld_shared_cluster_float4(address, block);
    else return ptx::ld_shared_float4(address);
  }

  // The workspace: a counter for each part of a tile, then the sums of the clusters.
  AT_DEVICE static float4* partial_sums(const Params& params, const Tile& tile, int split, int row) {
    char* const sums = (char*)params.p.p[AT_WORKSPACE] + P::counter_bytes(P::tile_count(params));
    const int64_t first = ((int64_t)split * P::tile_count(params) + tile.index) * P::kSumRows;
    return (float4*)sums + (first + row) * P::kRowVectors;
  }

  // Counts this block; true in the last of the blocks that have this part of this tile. The fences of one thread order
  // the accesses of all, because barriers lie between.
  AT_DEVICE static bool is_last(const Params& params, const Tile& tile) {
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0) {
      int* const counter = (int*)params.p.p[AT_WORKSPACE] + tile.index * P::kSlices + tile.slice;
      __threadfence();
      last = atomicAdd(counter, 1) == params.splits - 1;
      __threadfence();
      if (last) *counter = 0;  // for the next launch
    }
    return __syncthreads_or(last);
  }

  AT_DEVICE static void store_vector(const Params& params, const typename P::Place& place, int row,
                                     float (&v)[P::kVector]) {
    const int64_t offset = place.offset(params, row);
    if (offset < 0) return;
    const typename P::Steps::Fetched none{};  // the steps load their operands themselves
    P::Steps::apply(v, params.p.p, params.scalars, place.c, offset, none);
    store(v, (typename P::Element*)params.p.p[P::kDw] + offset);
  }
};

}  // namespace at
