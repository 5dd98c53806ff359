// The three convolutions of an inverted residual block in one kernel with mma.sync: a 1x1 convolution that widens the
// channels, a depthwise convolution, and a 1x1 convolution that narrows them. NHWC.
//
// A block computes a kTileH x kTileW tile of the output of kImages images. It copies the pixels of the input that the
// tile depends on to shared memory once. For each chunk of kChunk wide channels it
//   1. multiplies these pixels with the chunk's rows of the first weights, applies the inner steps, and writes the
//      result to `wide` in shared memory,
//   2. convolves `wide` with the depthwise filters, applies the steps, and writes the result to `narrow`,
//   3. multiplies `narrow` with the chunk's columns of the last weights; the sums stay in registers for all chunks.
// So neither wide tensor is in device memory. Pixels outside of the image are no rows of the first product: `wide` has
// zeros there from the beginning. The weights of the products are copied during the depthwise convolution, and its own
// filters during the products.
//
// At the end the sums pass through shared memory, so that a thread has 8 neighbouring channels for the last steps. With
// kParts > 1 the blocks of a cluster have the same tile and share the chunks. Each of them then adds up the sums of all
// blocks for a part of the tile, in the order of the blocks, so the same input gives the same bits.
#pragma once
#include "common/copies.cuh"
#include "common/mma.cuh"
#include "common/ptx/distributed_shared_memory.cuh"
#include "cuda/inverted_residual_plan.cuh"

namespace at {

template <typename Config>
struct InvertedResidual : InvertedResidualPlan<Config> {
  using P = InvertedResidualPlan<Config>;
  using typename P::Element, typename P::Steps, typename P::Params, typename P::Memory, typename P::Tile;
  using typename P::Unit, typename P::Accum;
  using P::kThreads, P::kVector, P::kParts, P::kTileH, P::kTileW, P::kImages, P::kFilter, P::kStride, P::kChunk;
  using P::kColumns, P::kHaloH, P::kHaloW, P::kWidePixels, P::kPixels, P::kRows, P::kWidePitch, P::kSumPitch;
  using P::kTogether, P::kExpandWarps, P::kExpandTiles, P::kExpandRowWarps, P::kGroup, P::kProjectWarps;
  using P::kRowTiles, P::kColumnTiles, P::kStrip, P::kNeighbours, P::kDepth;
  using P::kX, P::kWeight1, P::kWeight2, P::kWeight3, P::kY;

  AT_DEVICE static void run(const Params& params, char* shared) {
    void* const* p = params.p.p;
    const Memory at(params, shared);
    const Tile tile(params);
    const int rank = kParts > 1 ? (int)ptx::rank_in_cluster() : 0;
    const int first = rank * params.chunks / kParts, end = (rank + 1) * params.chunks / kParts;

    const Unit unit(params);

    if (first < end) {
      load_expand(params, unit, (const Element*)p[kWeight1], first, at.weights1);
      load_filters(params, (const Element*)p[kWeight2], first, at.filters);
    }
    find_pixels(params, tile, at);
    for (int i = threadIdx.x; i < kWidePixels * kWidePitch / kVector; i += kThreads)
      ((uint4*)at.wide)[i] = uint4{0, 0, 0, 0};
    __syncthreads();
    griddepcontrol_wait();
    if (first < end) load_input(params, unit, (const Element*)p[kX], tile, at);
    commit_copies();
    wait_for_all_copies();
    __syncthreads();

    Accum accum = {};
    for (int chunk = first; chunk < end; ++chunk) {
      expand(params, tile, at, chunk * kChunk);
      wait_for_all_copies();
      __syncthreads();  // `wide` and the filters are complete; all have read `narrow` and both products' weights
      load_project(params, (const Element*)p[kWeight3], chunk, at.weights3);
      if (chunk + 1 < end) load_expand(params, unit, (const Element*)p[kWeight1], chunk + 1, at.weights1);
      else launch_dependents();
      commit_copies();
      convolve(params, tile, at, chunk * kChunk);
      wait_for_all_copies();
      __syncthreads();  // `narrow` and the weights are complete; all have read `wide` and the filters
      if (chunk + 1 < end) load_filters(params, (const Element*)p[kWeight2], chunk + 1, at.filters);
      commit_copies();
      project(at, accum);
    }
    __syncthreads();  // the sums lie where the operands were
    write_sums(accum, at.sums);
    if constexpr (kParts > 1) {
      ptx::cluster_arrive_release();
      ptx::cluster_wait_acquire();
    } else {
      __syncthreads();
    }
    finish(params, tile, rank, at.sums);
    if constexpr (kParts > 1) {  // the other blocks have read this block's sums
      ptx::cluster_arrive_release();
      ptx::cluster_wait_acquire();
    }
  }

 private:
  AT_DEVICE static void find_pixels(const Params& params, const Tile& tile, const Memory& at) {
    for (int row = threadIdx.x; row < tile.groups() * kGroup; row += kThreads) {
      int pixel = -1, place = kWidePixels + row - tile.rows;
      if (row < tile.rows) {
        const int line = row / tile.clipped_w, image = line / tile.clipped_h;
        const int h = tile.clipped_top + line - image * tile.clipped_h;
        const int w = tile.clipped_left + row - line * tile.clipped_w;
        pixel = (image * params.a.h + h) * params.a.w + w;
        place = (image * kHaloH + h - tile.top) * kHaloW + w - tile.left;
      }
      at.pixels[row] = pixel, at.places[row] = place * kWidePitch;
    }
  }

  AT_DEVICE static void load_input(const Params& params, Unit i, const Element* from, const Tile& tile,
                                   const Memory& at) {
    from += (int64_t)tile.image * params.a.h * params.a.w * params.a.c;
    for (; i.row < tile.groups() * kGroup; i.advance(params)) {
      const int c = i.unit * kVector, pixel = at.pixels[i.row];
      const bool inside = pixel >= 0 && c < params.a.c;
      copy_async(address(at.input + i.row * params.pitch + c), from + (inside ? (int64_t)pixel * params.a.c + c : 0),
                 16, inside);
    }
  }

  // Starts to copy a chunk's rows of the first weights (hidden, c); zeros where there is no such row or column.
  AT_DEVICE static void load_expand(const Params& params, Unit i, const Element* from, int chunk, Element* to) {
    for (; i.row < kChunk; i.advance(params)) {
      const int c = i.unit * kVector, channel = chunk * kChunk + i.row;
      const bool inside = channel < params.a.hidden && c < params.a.c;
      copy_async(address(to + i.row * params.pitch + c), from + (inside ? (int64_t)channel * params.a.c + c : 0), 16,
                 inside);
    }
  }

  // The same with a chunk's columns of the last weights (k, hidden).
  AT_DEVICE static void load_project(const Params& params, const Element* from, int chunk, Element* to) {
    constexpr int kUnits = kChunk / kVector;
    for (int i = threadIdx.x; i < kColumns * kUnits; i += kThreads) {
      const int row = i / kUnits, c = i % kUnits * kVector, channel = chunk * kChunk + c;
      const bool inside = row < params.a.k && channel < params.a.hidden;
      copy_async(address(to + row * kWidePitch + c), from + (inside ? (int64_t)row * params.a.hidden + channel : 0), 16,
                 inside);
    }
  }

  // The same with the depthwise filters (r, s, hidden).
  AT_DEVICE static void load_filters(const Params& params, const Element* from, int chunk, Element* to) {
    constexpr int kUnits = kChunk / kVector;
    for (int i = threadIdx.x; i < kFilter * kFilter * kUnits; i += kThreads) {
      const int tap = i / kUnits, c = i % kUnits * kVector, channel = chunk * kChunk + c;
      const bool inside = channel < params.a.hidden;
      copy_async(address(to + tap * kChunk + c), from + (inside ? tap * params.a.hidden + channel : 0), 16, inside);
    }
  }

  AT_DEVICE static uint32_t address(const void* shared) { return (uint32_t)__cvta_generic_to_shared(shared); }

  // wide = inner steps(input (rows, c) weights1 (kChunk, c)^T).
  AT_DEVICE static void expand(const Params& params, const Tile& tile, const Memory& at, int first_channel) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pitch = 2 * params.pitch;
    const int steps = params.units / 2, groups = tile.groups();
    const int first_column = warp % kExpandWarps * kExpandTiles * 16;
    // ldmatrix: the row of 8 elements whose address a lane passes.
    const uint32_t a_row = address(at.input) + lane % 16 * pitch + lane / 16 * 16;
    const uint32_t b_row = address(at.weights1) + (first_column + lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16;
    for (int group = warp / kExpandWarps; group < groups; group += kExpandRowWarps) {
      float accum[kTogether][2 * kExpandTiles][4] = {};
      for (int step = 0; step < steps; ++step) {
        uint32_t a[kTogether][4];
        AT_UNROLL for (int t = 0; t < kTogether; ++t)
          load_matrices(a[t], a_row + (group * kGroup + t * 16) * pitch + step * 32);
        AT_UNROLL for (int n = 0; n < kExpandTiles; ++n) {
          uint32_t b[4];
          load_matrices(b, b_row + n * 16 * pitch + step * 32);
          AT_UNROLL for (int t = 0; t < kTogether; ++t) {
            mma<Element>(accum[t][2 * n], a[t], b[0], b[1]);
            mma<Element>(accum[t][2 * n + 1], a[t], b[2], b[3]);
          }
        }
      }
      int places[kTogether][2];
      AT_UNROLL for (int t = 0; t < kTogether; ++t) AT_UNROLL
        for (int half = 0; half < 2; ++half) places[t][half] = at.places[group * kGroup + t * 16 + 8 * half + lane / 4];
      AT_UNROLL for (int n = 0; n < 2 * kExpandTiles; ++n) {
        const int column = first_column + 8 * n, channel = first_channel + column + lane % 4 * 2;
        if (first_channel + column >= params.a.hidden) break;
        AT_UNROLL for (int t = 0; t < kTogether; ++t) AT_UNROLL
          for (int half = 0; half < 2; ++half) {
            float v[2] = {accum[t][n][2 * half], accum[t][n][2 * half + 1]};
            Steps::inner(v, params.p.p, params.a.scalars, channel);
            store(v, at.wide + places[t][half] + column + lane % 4 * 2);
          }
      }
    }
  }

  // narrow = steps(depthwise convolution of `wide`); zeros in channels beyond the last one.
  AT_DEVICE static void convolve(const Params& params, const Tile& tile, const Memory& at, int first_channel) {
    constexpr int kUnits = kChunk / kDepth, kSegments = kTileW / kNeighbours, kStrips = (kTileH + kStrip - 1) / kStrip;
    constexpr int kLine = (kNeighbours - 1) * kStride + kFilter, kLines = (kStrip - 1) * kStride + kFilter;
    constexpr bool kWhole = kTileH % kStrip == 0;
    const at_conv2d_se& a = params.a;
    for (int i = threadIdx.x; i < kUnits * kSegments * kStrips * kImages; i += kThreads) {
      const int unit = i % kUnits * kDepth, place = i / kUnits, column = place % kSegments * kNeighbours;
      const int row = place / kSegments % kStrips * kStrip, image = place / (kSegments * kStrips);
      const int channel = first_channel + unit;
      if (tile.first_p + row >= a.p || tile.first_q + column >= a.q) continue;
      const Element* from =
          at.wide + ((image * kHaloH + row * kStride) * kHaloW + column * kStride) * kWidePitch + unit;
      const Element* filters = at.filters + unit;
      Element* to = at.narrow + ((image * kTileH + row) * kTileW + column) * kWidePitch + unit;
      float accum[kStrip][kNeighbours][kDepth] = {};
      AT_UNROLL for (int h = 0; h < kLines; ++h) {
        if (!kWhole && row * kStride + h >= kHaloH) break;
        Pack<Element, kDepth> line[kLine];
        AT_UNROLL for (int j = 0; j < kLine; ++j)
          line[j].read(from + (h * kHaloW + j) * kWidePitch);
        AT_UNROLL for (int o = 0; o < kStrip; ++o) {
          const int r = h - o * kStride;
          if (r < 0 || r >= kFilter) continue;
          AT_UNROLL for (int s = 0; s < kFilter; ++s) {
            Pack<Element, kDepth> taps;
            taps.read(filters + (r * kFilter + s) * kChunk);
            AT_UNROLL for (int j = 0; j < kNeighbours; ++j) AT_UNROLL
              for (int e = 0; e < kDepth; ++e)
                accum[o][j][e] += to_float(line[j * kStride + s].elements[e]) * to_float(taps.elements[e]);
          }
        }
      }
      // All steps before all stores, so that a vector's values are read once.
      if (channel < a.hidden) {
        AT_UNROLL for (int o = 0; o < kStrip; ++o) AT_UNROLL
          for (int j = 0; j < kNeighbours; ++j) Steps::before(accum[o][j], params.p.p, a.scalars, channel);
      } else {
        AT_UNROLL for (int o = 0; o < kStrip; ++o) AT_UNROLL
          for (int j = 0; j < kNeighbours; ++j) AT_UNROLL
            for (int e = 0; e < kDepth; ++e) accum[o][j][e] = 0.f;
      }
      AT_UNROLL for (int o = 0; o < kStrip; ++o) {
        if (!kWhole && row + o >= kTileH) break;
        AT_UNROLL for (int j = 0; j < kNeighbours; ++j)
          store(accum[o][j], to + (o * kTileW + j) * kWidePitch);
      }
    }
  }

  // sums += narrow (kRows, kChunk) weights3 (kColumns, kChunk)^T.
  AT_DEVICE static void project(const Memory& at, Accum& accum) {
    constexpr int kPitch = 2 * kWidePitch;
    const int lane = threadIdx.x % 32, first_row = first_row_tile(), first_column = first_column_tile();
    const uint32_t a_row = address(at.narrow) + (first_row * 16 + lane % 16) * kPitch + lane / 16 * 16;
    const uint32_t b_row =
        address(at.weights3) + (first_column * 16 + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 16;
    AT_UNROLL for (int step = 0; step < kChunk / 16; ++step) {
      uint32_t a[kRowTiles][4];
      AT_UNROLL for (int t = 0; t < kRowTiles; ++t)
        load_matrices(a[t], a_row + t * 16 * kPitch + step * 32);
      AT_UNROLL for (int n = 0; n < kColumnTiles; ++n) {
        uint32_t b[4];
        load_matrices(b, b_row + n * 16 * kPitch + step * 32);
        AT_UNROLL for (int t = 0; t < kRowTiles; ++t) {
          mma<Element>(accum[t][2 * n], a[t], b[0], b[1]);
          mma<Element>(accum[t][2 * n + 1], a[t], b[2], b[3]);
        }
      }
    }
  }

  AT_DEVICE static int first_row_tile() { return threadIdx.x / 32 / kProjectWarps * kRowTiles; }
  AT_DEVICE static int first_column_tile() { return threadIdx.x / 32 % kProjectWarps * kColumnTiles; }

  AT_DEVICE static void write_sums(const Accum& accum, float* to) {
    const int lane = threadIdx.x % 32, first_row = first_row_tile(), first_column = first_column_tile();
    AT_UNROLL for (int t = 0; t < kRowTiles; ++t) AT_UNROLL
      for (int n = 0; n < 2 * kColumnTiles; ++n) {
        if ((first_row + t) * 16 >= kRows || first_column * 16 + 8 * n >= kColumns) continue;
        AT_UNROLL for (int half = 0; half < 2; ++half) {
          const int row = (first_row + t) * 16 + 8 * half + lane / 4, column = first_column * 16 + 8 * n + lane % 4 * 2;
          *(float2*)(to + row * kSumPitch + column) = float2{accum[t][n][2 * half], accum[t][n][2 * half + 1]};
        }
      }
  }

  // Applies the last steps and stores the result. The blocks of a cluster take turns.
  AT_DEVICE static void finish(const Params& params, const Tile& tile, int rank, const float* from) {
    constexpr int kUnits = kColumns / kVector;
    const at_conv2d_se& a = params.a;
    for (int i = rank * kThreads + threadIdx.x; i < kPixels * kUnits; i += kParts * kThreads) {
      const int channel = i % kUnits * kVector, row = i / kUnits, image = tile.image + row / (kTileH * kTileW);
      const int p = tile.first_p + row / kTileW % kTileH, q = tile.first_q + row % kTileW;
      if (channel >= a.k || image >= a.n || p >= a.p || q >= a.q) continue;
      float v[kVector] = {};
      AT_UNROLL for (int part = 0; part < kParts; ++part) AT_UNROLL
        for (int e = 0; e < kVector; e += 4) {
          const float* own = from + row * kSumPitch + channel + e;
          float4 four;
          if constexpr (kParts > 1) four = ptx::ld_shared_cluster_float4(address(own), part);
          else four = *(const float4*)own;
          v[e] += four.x, v[e + 1] += four.y, v[e + 2] += four.z, v[e + 3] += four.w;
        }
      const int64_t offset = (((int64_t)image * a.p + p) * a.q + q) * a.k + channel;
      Steps::apply(v, params.p.p, a.scalars, channel, offset, typename Steps::Fetched{});
      store(v, (Element*)params.p.p[kY] + offset);
    }
  }
};

}  // namespace at
