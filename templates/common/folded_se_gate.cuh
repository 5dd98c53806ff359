// Squeeze-and-excitation with the squeeze folded into the filters (problem conv2d_folded_se). A tile's products have
// kHidden columns beside its kN channels. The mean of a hidden column over an image's pixels is the hidden value before
// its bias. So a tile of whole images computes its gates alone, whichever channels it has.
//
// If all rows of a warp belong to one image, each lane computes the gates of some channels. For images of 1, 4 or 8
// pixels the second product runs on tensor cores (mma.sync): a thread's sums of the hidden columns are its part of the
// A operand, and the result has the order of its accumulators. A second mma adds what rounding the hidden values lost.
// For larger images this would be slow, since the tensor cores serve the other warpgroup's wgmma first.
#pragma once
#include "common/copies.cuh"
#include "common/mma.cuh"
#include "common/fast_divmod.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"

namespace at {

// kWarps: images have a multiple of 16 pixels; else 1, 4 or 8.
template <typename Element, int kM, int kN, int kHidden, int kThreads, bool kWarps>
struct FoldedSeGate {
  static constexpr int kColumns = kHidden / 8,
                       kSteps = (kHidden + 15) / 16;  // of wgmma's eight columns; of the product
  static constexpr int kRow =
      16 * kSteps + 8;  // elements from one row of w2 to the next; 8 of padding against bank conflicts
  // Offsets in shared memory, in bytes: w2's rows of the tile's channels, b2, b1, the warps' partial sums, then hidden
  // values and gates of each warp.
  static constexpr int kB2 = kN * kRow * 2, kB1 = kB2 + kN * 4, kPartial = kB1 + 16 * kSteps * 4;
  static constexpr int kOwn = kPartial + kM / 16 * kHidden * 4, kWarpBytes = (kHidden + kN) * 4;
  static constexpr int kBytes = (kOwn + kThreads / 32 * kWarpBytes + 127) / 128 * 128;

  int pixels, hidden;
  float weight;      // of a pixel in the mean: 1 / pixels
  FastDivmod slabs;  // blocks of 16 rows in an image
  char* memory;

  AT_DEVICE static bool fits(int pixels, int hidden) {
    const bool known = kWarps ? pixels % 16 == 0 : pixels == 1 || pixels == 4 || pixels == 8;
    return known && pixels > 0 && kM % pixels == 0 && hidden % 4 == 0 && hidden > 0 && hidden <= kHidden;
  }

  // Starts to copy the weights of the tile's gates. p: b1 (hidden), w2 (k, hidden), b2 (k). channel: the tile's first
  // of k.
  AT_DEVICE void load_weights(void* const* p, int channel, int k, int thread) const {
    const uint32_t to = ptx::cast_smem_ptr_to_uint(memory);
    const Element* w2 = (const Element*)p[1] + (int64_t)channel * hidden;
    const float *b1 = (const float*)p[0], *b2 = (const float*)p[2] + channel;
    const int rest = min(k - channel, kN);  // channels that exist; a multiple of 8
    AT_NO_UNROLL for (int c = thread; c < rest; c += kThreads) {
      const int row = row_of(c) * kRow;
      AT_NO_UNROLL for (int o = 0; o < 16 * kSteps; o += 4) {
        if (o < hidden) copy_async<8>(to + (row + o) * 2, w2 + c * hidden + o);
        else *(uint2*)(memory + (row + o) * 2) = make_uint2(0, 0);
      }
    }
    AT_NO_UNROLL for (int i = thread; i < rest / 4; i += kThreads)
      copy_async<16>(to + kB2 + 16 * i, b2 + 4 * i);
    AT_NO_UNROLL for (int i = thread; i < hidden / 4; i += kThreads)
      copy_async<16>(to + kB1 + 16 * i, b1 + 4 * i);
  }

  // Scales the sums by the gates. first_block: index of their first block of 64 rows in the tile. sync: a barrier of
  // all threads of the tile.
  template <int kBlocks, int kSums, typename Sync>
  AT_DEVICE void scale(float (&sums)[kBlocks][kSums], int first_block, const Sync& sync) const {
    wait_for_all_copies();
    if constexpr (kWarps) {
      scale_warps(sums, first_block, sync);
    } else {
      AT_UNROLL for (int m = 0; m < kBlocks; ++m)
        add_rows(sums[m]);
      sync();
      AT_UNROLL for (int m = 0; m < kBlocks; ++m)
        multiply(sums[m]);
    }
  }

 private:
  // The position of a channel's row of w2: rows that are read together are neighbours. wgmma's columns, of which
  // `multiply` needs eight at a time, are channels in the order of layout "wgmma" (autotune/ir/weight_layout.py).
  AT_DEVICE static int row_of(int channel) {
    return channel / 32 * 32 + channel % 8 / 2 * 8 + channel % 32 / 8 * 2 + channel % 2;
  }

  // ---- All 16 rows of a warp are of one image ----

  template <int kBlocks, int kSums, typename Sync>
  AT_DEVICE void scale_warps(float (&sums)[kBlocks][kSums], int first_block, const Sync& sync) const {
    const int warp = ptx::warp_uniform(threadIdx.x / 32) % (kThreads / 32), part = threadIdx.x % 4;
    float2 total[kBlocks][kColumns];
    AT_UNROLL for (int m = 0; m < kBlocks; ++m) AT_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        const float* v = &sums[m][kN / 2 + 4 * j];
        total[m][j] = make_float2(v[0] + v[2], v[1] + v[3]);
      }
    each_block(total, warp, 4 * first_block + warp % 4, 4, true, sync, [&](int m, const float* gates) {
      AT_UNROLL for (int columns = 0; columns < kN / 32; ++columns) {
        float factor[8];
        load(factor, gates + 32 * columns + 8 * part);
        AT_UNROLL for (int i = 0; i < 16; ++i)
          sums[m][16 * columns + i] *= factor[i / 4 * 2 + i % 2];
      }
    });
  }

 public:
  // Calls scale(block, gates) for each of a warp's blocks of 16 rows. total: hidden columns 8 j + 2 (lane % 4) and the
  // next, of rows lane / 4 and lane / 4 + 8. warp: index in the tile. first_slab, step: index in the tile of the first
  // block of 16 rows, and the distance to the next. leaves: this warp stores the partial sums for others.
  template <int kBlocks, typename Sync, typename Scale>
  AT_DEVICE void each_block(float2 (&total)[kBlocks][kColumns], int warp, int first_slab, int step, bool leaves,
                            const Sync& sync, const Scale& scale) const {
    const int lane = threadIdx.x % 32, part = lane % 4;
    float* partial = (float*)(memory + kPartial) + 2 * part;
    AT_UNROLL for (int distance = 4; distance < 32; distance *= 2) AT_UNROLL
      for (int m = 0; m < kBlocks; ++m) AT_UNROLL
        for (int j = 0; j < kColumns; ++j) {
          total[m][j].x += __shfl_xor_sync(0xffffffffu, total[m][j].x, distance);
          total[m][j].y += __shfl_xor_sync(0xffffffffu, total[m][j].y, distance);
        }
    if (slabs.divisor > 1) sync();  // all warps have read the partial sums of the tile before
    if (slabs.divisor > 1 && lane < 4 && leaves) AT_UNROLL
      for (int m = 0; m < kBlocks; ++m) AT_UNROLL
        for (int j = 0; j < kColumns; ++j)
          *(float2*)(partial + (first_slab + step * m) * kHidden + 8 * j) = total[m][j];
    sync();
    float* hiddens = (float*)(memory + kOwn + warp * kWarpBytes);
    AT_UNROLL for (int m = 0; m < kBlocks; ++m) {
      const float* from = partial + slabs.divide(first_slab + step * m) * slabs.divisor * kHidden;
      __syncwarp();  // all lanes have read the values of the block before
      AT_UNROLL for (int j = 0; j < kColumns; ++j) {
        const int o = 8 * j + 2 * part;
        float2 sum = total[m][j];
        if (slabs.divisor > 1) {
          sum = make_float2(0.f, 0.f);
#pragma unroll 4
          for (int slab = 0; slab < slabs.divisor; ++slab) {
            const float2 one = *(const float2*)(from + slab * kHidden + 8 * j);
            sum.x += one.x, sum.y += one.y;
          }
        }
        const float2 bias = o < hidden ? *(const float2*)(memory + kB1 + 4 * o) : make_float2(0.f, 0.f);
        if (lane < 4)
          *(float2*)(hiddens + o) =
              make_float2(at_least_zero(sum.x * weight + bias.x), at_least_zero(sum.y * weight + bias.y));
      }
      __syncwarp();
      find_gates(hiddens);
      __syncwarp();
      scale(m, hiddens + kHidden);
    }
  }

 private:
  // Computes a warp's gates and stores them behind its hidden values. A lane's channels are those of its rows of w2.
  AT_DEVICE void find_gates(float* hiddens) const {
    const int lane = threadIdx.x % 32, channel = lane % 8 / 2 * 8 + lane / 8 * 2 + lane % 2;
    float sum[kN / 32];
    AT_UNROLL for (int i = 0; i < kN / 32; ++i)
      sum[i] = *(const float*)(memory + kB2 + 4 * (32 * i + channel));
    AT_UNROLL for (int o = 0; o < kHidden; o += 8) {
      float h[8];
      load(h, hiddens + o);
      AT_UNROLL for (int i = 0; i < kN / 32; ++i) {
        float w[8];
        load(w, (const Element*)memory + (32 * i + lane) * kRow + o);
        AT_UNROLL for (int e = 0; e < 8; ++e)
          sum[i] += w[e] * h[e];
      }
    }
    AT_UNROLL for (int i = 0; i < kN / 32; ++i)
      hiddens[kHidden + 32 * i + channel] = logistic(sum[i]);
  }

  // ---- Images of 1, 4 or 8 pixels ----

  // Adds up the hidden columns of an image's rows, which are in every fourth lane.
  template <int kSums>
  AT_DEVICE void add_rows(float (&sums)[kSums]) const {
    AT_NO_UNROLL for (int distance = 4; distance < 4 * pixels; distance *= 2) AT_UNROLL
      for (int i = kN / 2; i < kSums; ++i) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], distance);
  }

  template <int kSums>
  AT_DEVICE void multiply(float (&sums)[kSums]) const {
    const int lane = threadIdx.x % 32, row = lane / 4, part = lane % 4;
    uint32_t most[kSteps][4], rest[kSteps][4];
    AT_UNROLL for (int i = 0; i < 2 * kSteps; ++i) {
      float v[4] = {};
      if (i < kColumns) {
        const int o = 8 * i + 2 * part;
        const float2 bias = o < hidden ? *(const float2*)(memory + kB1 + 4 * o) : make_float2(0.f, 0.f);
        AT_UNROLL for (int e = 0; e < 4; ++e)
          v[e] = at_least_zero(sums[kN / 2 + 4 * i + e] * weight + (e % 2 ? bias.y : bias.x));
      }
      const int step = i / 2, word = i % 2 * 2;
      split<Element>(v[0], v[1], most[step][word], rest[step][word]);
      split<Element>(v[2], v[3], most[step][word + 1], rest[step][word + 1]);
    }
    AT_UNROLL for (int columns = 0; columns < kN / 32; ++columns) {  // four independent products
      float d[4][4];
      AT_UNROLL for (int tile = 0; tile < 4; ++tile) {
        const uint32_t* w2 = (const uint32_t*)memory + (32 * columns + 8 * tile + row) * kRow / 2 + part;
        const float2 bias = *(const float2*)(memory + kB2 + 4 * (32 * columns + 2 * tile + part * 8));
        d[tile][0] = d[tile][2] = bias.x, d[tile][1] = d[tile][3] = bias.y;
        AT_UNROLL for (int step = 0; step < kSteps; ++step) {
          mma<Element>(d[tile], most[step], w2[8 * step], w2[8 * step + 4]);
          mma<Element>(d[tile], rest[step], w2[8 * step], w2[8 * step + 4]);
        }
      }
      AT_UNROLL for (int tile = 0; tile < 4; ++tile) AT_UNROLL
        for (int e = 0; e < 4; ++e) sums[16 * columns + 4 * tile + e] *= logistic(d[tile][e]);
      asm volatile("" ::: "memory");  // do not prefetch the next columns: there are no registers for them
    }
  }
};

}  // namespace at
