// A 1x1 convolution that widens the channels and the depthwise convolution after it, in one kernel with mma.sync. NHWC.
//
// A block computes a kTileH x kTileW tile of the output. It copies the tile's input, with the border that the depthwise
// filter reads, to shared memory once. For each chunk of kChunk wide channels it multiplies the input with the chunk's
// weights, applies the inner steps, and writes the result to shared memory, where the depthwise convolution reads it;
// so the wide tensor is never in device memory. Border pixels outside of the image are zero after the inner steps. The
// next chunk's weights are copied during the depthwise convolution. Blocks with the same tile can share the chunks
// (parts).
#pragma once
#include "common/copies.cuh"
#include "common/mma.cuh"

namespace at {

template <typename Config>
struct ExpandDepthwise {
  using Element = typename Config::Element;
  using Launch = typename Config::Launch;
  using Steps = typename Config::Steps;
  static constexpr int kThreads = Config::kThreads, kWarps = kThreads / 32, kVector = 8;
  static constexpr int kTileH = Config::kTileH, kTileW = Config::kTileW, kColumns = Config::kColumns;
  static constexpr int kFilter = Config::kFilter, kStride = Config::kStride, kChunk = Config::kChunk;
  static constexpr int kHaloH = (kTileH - 1) * kStride + kFilter, kHaloW = (kTileW - 1) * kStride + kFilter;
  static constexpr int kPixels = kHaloH * kHaloW;
  // Rows of 16 pixels that a warp multiplies together, so that it reads the weights once for all of them.
  static constexpr int kTogether = (kPixels + 15) / 16 >= 2 * kWarps ? 2 : 1;
  static constexpr int kGroups = (kPixels + 16 * kTogether - 1) / (16 * kTogether);
  static constexpr int kRows = 16 * kTogether * kGroups;
  static constexpr int kPadding = 8;  // elements between rows, so that neighbouring rows are in different banks
  static constexpr int kWidePitch = kChunk + kPadding;
  static_assert(kTileW % kColumns == 0 && kChunk % 16 == 0, "no such tile");
  // Indices of the pointers: Problem.operands() of expand_depthwise.
  enum { kX = 0, kWeight1 = 1, kWeight2 = 2, kY = 3 };

  struct Params {
    at_conv2d a;
    int pitch;  // elements of a row of the input and of the first weights in shared memory
    int tiles_h, tiles_w, chunks;
    at_pointers p;
  };

  AT_DEVICE static void prepare(const at_conv2d& a, at_prepared* out) {
    if (a.c % kVector || a.k % kVector) return refused(out, "c and k must be multiples of 8");
    if (a.r != kFilter || a.s != kFilter || a.stride_h != kStride || a.stride_w != kStride)
      return refused(out, "the filter and the stride must be those that the kernel is compiled for");
    Params params;
    params.a = a, params.pitch = (a.c + 15) / 16 * 16 + kPadding;
    params.tiles_h = ceil_div(a.p, kTileH), params.tiles_w = ceil_div(a.q, kTileW),
    params.chunks = ceil_div(a.k, kChunk);
    const int64_t bytes = 2 * ((int64_t)(kRows + kChunk) * params.pitch + kRows * kWidePitch);
    if (bytes > AT_MAX_SHARED_BYTES) return refused(out, "the block needs more shared memory than there is");
    const int parts = max(1, min(a.launch[Launch::kParts], params.chunks));
    prepared(out, params, a.n * params.tiles_h * params.tiles_w, parts, 1, kThreads, bytes, 0);
  }

  // The tile of a block: its image, and the input pixel of the border's first corner.
  struct Tile {
    int image, first_p, first_q, top, left;
    AT_DEVICE explicit Tile(const Params& params) {
      const int column = blockIdx.x % params.tiles_w, rest = blockIdx.x / params.tiles_w;
      image = rest / params.tiles_h, first_p = rest % params.tiles_h * kTileH, first_q = column * kTileW;
      top = first_p * kStride - params.a.pad_h, left = first_q * kStride - params.a.pad_w;
    }
    // Returns the index of a pixel of the border in the image, -1 outside of the image.
    AT_DEVICE int pixel(const at_conv2d& a, int index) const {
      const int row = top + index / kHaloW, column = left + index % kHaloW;
      const bool inside = index < kPixels && row >= 0 && row < a.h && column >= 0 && column < a.w;
      return inside ? row * a.w + column : -1;
    }
  };

  AT_DEVICE static void run(const Params& params, char* shared) {
    const at_conv2d& a = params.a;
    void* const* p = params.p.p;
    Element* input = (Element*)shared;
    Element* weights = input + kRows * params.pitch;
    Element* wide = weights + kChunk * params.pitch;
    const Tile tile(params);
    const int each = ceil_div(params.chunks, gridDim.y), first = blockIdx.y * each,
              end = min(first + each, params.chunks);
    if (first >= end) return;

    load_weights(params, (const Element*)p[kWeight1], first, weights);
    griddepcontrol_wait();
    load_input(params, (const Element*)p[kX], tile, input);
    commit_copies();
    for (int chunk = first; chunk < end; ++chunk) {
      wait_for_all_copies();
      __syncthreads();
      multiply(params, tile, chunk * kChunk, input, weights, wide);
      __syncthreads();
      if (chunk + 1 < end) {
        load_weights(params, (const Element*)p[kWeight1], chunk + 1, weights);
        commit_copies();
      } else {
        launch_dependents();
      }
      convolve(params, tile, chunk * kChunk, wide);
    }
  }

 private:
  // Starts to copy a chunk's rows of the first weights (k, c); zeros where there is no such row or column.
  AT_DEVICE static void load_weights(const Params& params, const Element* from, int chunk, Element* to) {
    const int units = (params.pitch - kPadding) / kVector;
    for (int i = threadIdx.x; i < kChunk * units; i += kThreads) {
      const int row = i / units, c = i % units * kVector, channel = chunk * kChunk + row;
      const bool inside = channel < params.a.k && c < params.a.c;
      copy_async((uint32_t)__cvta_generic_to_shared(to + row * params.pitch + c),
                 from + (inside ? (int64_t)channel * params.a.c + c : 0), 16, inside);
    }
  }

  AT_DEVICE static void load_input(const Params& params, const Element* from, const Tile& tile, Element* to) {
    const int units = (params.pitch - kPadding) / kVector;
    for (int i = threadIdx.x; i < kRows * units; i += kThreads) {
      const int row = i / units, c = i % units * kVector, pixel = tile.pixel(params.a, row);
      const bool inside = pixel >= 0 && c < params.a.c;
      copy_async((uint32_t)__cvta_generic_to_shared(to + row * params.pitch + c),
                 from + (inside ? ((int64_t)tile.image * params.a.h * params.a.w + pixel) * params.a.c + c : 0), 16,
                 inside);
    }
  }

  // wide (kRows, kChunk) = inner steps(input (kRows, c) weights (kChunk, c)^T), zero outside of the image.
  AT_DEVICE static void multiply(const Params& params, const Tile& tile, int first_channel, const Element* input,
                                 const Element* weights, Element* wide) {
    const int lane = threadIdx.x % 32, pitch = 2 * params.pitch, steps = (params.pitch - kPadding) / 16;
    // ldmatrix: the row of 8 elements whose address a lane passes.
    const uint32_t a_row = (uint32_t)__cvta_generic_to_shared(input) + lane % 16 * pitch + lane / 16 * 16;
    const uint32_t b_row =
        (uint32_t)__cvta_generic_to_shared(weights) + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16;
    for (int group = threadIdx.x / 32; group < kGroups; group += kWarps) {
      float accum[kTogether][kChunk / 8][4] = {};
      for (int step = 0; step < steps; ++step) {
        uint32_t a[kTogether][4];
        AT_UNROLL for (int t = 0; t < kTogether; ++t)
          load_matrices(a[t], a_row + (group * kTogether + t) * 16 * pitch + step * 32);
        AT_UNROLL for (int n = 0; n < kChunk / 16; ++n) {
          uint32_t b[4];
          load_matrices(b, b_row + n * 16 * pitch + step * 32);
          AT_UNROLL for (int t = 0; t < kTogether; ++t) {
            mma<Element>(accum[t][2 * n], a[t], b[0], b[1]);
            mma<Element>(accum[t][2 * n + 1], a[t], b[2], b[3]);
          }
        }
      }
      AT_UNROLL for (int t = 0; t < kTogether; ++t) AT_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int row = (group * kTogether + t) * 16 + 8 * half + lane / 4;
          const bool inside = tile.pixel(params.a, row) >= 0;
          AT_UNROLL for (int n = 0; n < kChunk / 8; ++n) {
            float v[2] = {};
            if (inside && first_channel + 8 * n < params.a.k) {
              v[0] = accum[t][n][2 * half], v[1] = accum[t][n][2 * half + 1];
              Steps::inner(v, params.p.p, params.a.scalars, first_channel + 8 * n + lane % 4 * 2);
            }
            store(v, wide + row * kWidePitch + 8 * n + lane % 4 * 2);
          }
        }
    }
  }

  // The depthwise convolution of a chunk. A thread computes kColumns neighbouring pixels of 8 channels.
  AT_DEVICE static void convolve(const Params& params, const Tile& tile, int first_channel, const Element* wide) {
    constexpr int kUnits = kChunk / kVector, kSegments = kTileW / kColumns;
    constexpr int kLine = (kColumns - 1) * kStride + kFilter;
    const at_conv2d& a = params.a;
    for (int i = threadIdx.x; i < kUnits * kSegments * kTileH; i += kThreads) {
      const int unit = i % kUnits, place = i / kUnits, row = place / kSegments, column = place % kSegments * kColumns;
      const int channel = first_channel + unit * kVector, p = tile.first_p + row, q = tile.first_q + column;
      if (channel >= a.k || p >= a.p || q >= a.q) continue;
      const Element* weight = (const Element*)params.p.p[kWeight2] + channel;  // (r, s, k)
      float accum[kColumns][kVector] = {};
      AT_UNROLL for (int r = 0; r < kFilter; ++r) {
        Pack<Element, kVector> line[kLine];
        const Element* from = wide + ((row * kStride + r) * kHaloW + column * kStride) * kWidePitch + unit * kVector;
        AT_UNROLL for (int j = 0; j < kLine; ++j)
          line[j].read(from + j * kWidePitch);
        AT_UNROLL for (int s = 0; s < kFilter; ++s) {
          Pack<Element, kVector> taps;
          taps.read(weight + (int64_t)(r * kFilter + s) * a.k);
          AT_UNROLL for (int j = 0; j < kColumns; ++j) AT_UNROLL
            for (int e = 0; e < kVector; ++e)
              accum[j][e] += to_float(line[j * kStride + s].elements[e]) * to_float(taps.elements[e]);
        }
      }
      AT_UNROLL for (int j = 0; j < kColumns; ++j) {
        if (q + j >= a.q) break;
        const int64_t offset = (((int64_t)tile.image * a.p + p) * a.q + q + j) * a.k + channel;
        Steps::apply(accum[j], params.p.p, a.scalars, channel, offset, typename Steps::Fetched{});
        store(accum[j], (Element*)params.p.p[kY] + offset);
      }
    }
  }
};

}  // namespace at
