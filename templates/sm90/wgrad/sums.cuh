// The end of a gradient by the weight: the sums of all blocks that share a tile's pixels, the steps, and the result.
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
#pragma unroll
    for (int i = 0; i < P::kN / 2; i += 2)
      ptx::st_shared(to + i % 4 / 2 * 8 * P::kSumPitch * 4 + i / 4 * 32,
                     make_float2(sums[first + i], sums[first + i + 1]));
  }

  // Adds the sums of all blocks, each for its part of the tile. All threads call it, with the block's sums in shared
  // memory.
  AT_DEVICE static void finish(const Params& x, const Layout& smem, const Tile& tile) {
    if constexpr (P::kSlices > 1) {
      ptx::cluster_arrive_release();
      ptx::cluster_wait_acquire();
    } else {
      __syncthreads();
    }
    add_blocks(x, smem, tile);
    // Until here others read this block's shared memory, or arrive at its barriers.
    if constexpr (P::kClusterBlocks > 1) ptx::cluster_sync();
  }

 private:
  AT_DEVICE static void add_blocks(const Params& x, const Layout& smem, const Tile& tile) {
    constexpr int kVectors = P::kShareRows * P::kRowVectors;
    // Vectors that a thread loads before it stores the first, so that their latencies overlap.
    constexpr int kAhead = kVectors > 3 * P::kThreads ? 4 : kVectors > P::kThreads ? 2 : 1;
    const int first = tile.slice * P::kShareRows * P::kRowVectors;
    float4* const partial = partial_sums(x, tile, tile.split) + first;
    for (int begin = threadIdx.x; begin < kVectors; begin += kAhead * P::kThreads) {
      float v[kAhead][P::kVector] = {};
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const Vector at(first + min(begin + u * P::kThreads, kVectors - 1));
        // Each block begins with its own sums, so that not all read from the same block.
#pragma unroll
        for (int j = 0; j < P::kSlices; ++j) add(v[u], block_sums(smem, at, tile.rank((tile.slice + j) % P::kSlices)));
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int i = begin + u * P::kThreads;
        if (i >= kVectors) break;
        if (x.splits == 1) store_vector(x, tile, Vector(first + i), v[u]);
        else partial[i] = make_float4(v[u][0], v[u][1], v[u][2], v[u][3]);
      }
    }
    if (x.splits > 1 && is_last(x, tile)) {
      const int64_t next = (int64_t)P::tile_count(x) * P::kSumRows * P::kRowVectors;  // from one split to the next
      const float4* const sums = partial_sums(x, tile, 0) + first;
      for (int i = threadIdx.x; i < kVectors; i += P::kThreads) {
        float v[P::kVector] = {};
#pragma unroll 16
        for (int split = 0; split < x.splits; ++split) add(v, sums[split * next + i]);
        store_vector(x, tile, Vector(first + i), v);
      }
    }
  }

  // A vector of a tile's sums: its row, and its first column.
  struct Vector {
    int row, column;
    AT_DEVICE explicit Vector(int vector)
        : row(vector / P::kRowVectors), column(vector % P::kRowVectors * P::kVector) {}
  };

  AT_DEVICE static void add(float (&v)[P::kVector], float4 other) {
    v[0] += other.x, v[1] += other.y, v[2] += other.z, v[3] += other.w;
  }

  AT_DEVICE static float4 block_sums(const Layout& smem, const Vector& at, int block) {
    const uint32_t address = sum_row(smem, at.row) + 4 * at.column;
    if constexpr (P::kSlices > 1) return ptx::ld_shared_cluster_float4(address, block);
    else return ptx::ld_shared_float4(address);
  }

  // The workspace: a counter for each part of a tile, then the sums of the clusters.
  AT_DEVICE static float4* partial_sums(const Params& x, const Tile& tile, int split) {
    char* const sums = (char*)x.p.p[AT_WORKSPACE] + P::counter_bytes(P::tile_count(x));
    return (float4*)sums + ((int64_t)split * P::tile_count(x) + tile.index) * P::kSumRows * P::kRowVectors;
  }

  // Counts this block; true in the last of the blocks that have this part of this tile.
  AT_DEVICE static bool is_last(const Params& x, const Tile& tile) {
    __threadfence();
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0) {
      int* const counter = (int*)x.p.p[AT_WORKSPACE] + tile.index * P::kSlices + tile.slice;
      last = atomicAdd(counter, 1) == x.splits - 1;
      if (last) *counter = 0;  // for the next launch
    }
    last = __syncthreads_or(last);
    __threadfence();
    return last;
  }

  AT_DEVICE static void store_vector(const Params& x, const Tile& tile, const Vector& at, float (&v)[P::kVector]) {
    const typename P::Place to(x, tile, at.row, at.column);
    if (to.k >= x.k || to.c >= x.c || to.r >= x.r || to.s >= x.s) return;
    const int64_t offset = (((int64_t)to.k * x.r + to.r) * x.s + to.s) * x.c + to.c;
    const typename P::Steps::Fetched none{};  // the steps load their operands themselves
    P::Steps::apply(v, x.p.p, x.scalars, to.c, offset, none);
    store(v, (typename P::Element*)x.p.p[P::kDw] + offset);
  }
};

}  // namespace at
