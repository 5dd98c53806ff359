// Two convolutions in one kernel with mma.sync; NHWC. The second one reads the first one's result in shared memory.
//
// A block computes a tile of kTileH x kTileW outputs of kImages images, with all channels. The hidden tensor of the
// tile is the first convolution's result with the border that the second one's filter reads. It is computed first, in
// kPasses passes over its pixels for each slice of kN channels, goes through the inner steps, and is written to shared
// memory with all its channels; pixels outside of the image are zeros there. The second convolution takes its operands
// from there, again in slices of kN channels, so no slice computes the hidden tensor anew.
//
// The weights of both convolutions stream through one ring of kStages buffers, by cp.async. A filter's weights are
// (r, s, channels) in memory; a step is kDepth of them, so it may span several taps. The input of a 1x1 convolution
// goes through the same ring. That of a 3x3 convolution is in shared memory as a whole: a patch, like the hidden tile.
#pragma once
#include "common/copies.cuh"
#include "common/mma.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"
#include "cuda/conv2d_pair_plan.cuh"

namespace at {

template <typename Config>
struct Conv2dPair : Conv2dPairPlan<Config> {
  using P = Conv2dPairPlan<Config>;
  using typename P::Element, typename P::Steps, typename P::Params, typename P::Tile, typename P::Warp;
  using typename P::First, typename P::Second, typename P::Patch;
  template <typename Of>
  using Pixel = typename P::template Pixel<Of>;
  using P::kFilter1, P::kStride1, P::kStride, P::kImages, P::kWhole, P::kWarpsM, P::kWarpN, P::kN, P::kThreads;
  using P::kDepth, P::kStages, P::kUnits, P::kPitch, P::kGroup, P::kVector, P::kHaloH, P::kHaloW, P::kInputH;
  using P::kInputW, P::kPatch, P::kListed, P::kStageBytes, P::kX, P::kWeight1, P::kWeight2, P::kY;

  // Threads that copy neighbouring units of a row of the ring, and the rows that all threads copy at a time.
  static constexpr int kLanes = kUnits % 8 == 0 ? 8 : kUnits % 4 == 0 ? 4 : 2, kCopied = kThreads / kLanes;

  // Copies the steps of both convolutions to the ring, in the order in which they are multiplied.
  struct Loader {
    int part = 0, slice = 0, pass = 0, k = 0, slot = 0;

    AT_DEVICE void advance(const Params& params) {
      if (++slot == kStages) slot = 0;
      if (part > 1 || (k += kDepth) < params.depth[part]) return;
      k = 0;
      if (++pass < (part ? Second::kPasses : First::kPasses)) return;
      pass = 0;
      if (++slice < params.slices[part]) return;
      slice = 0, ++part;
    }

    // Starts to copy the step's weights; zeros where there is no such filter or weight. Filters are in such an order
    // that the sums of a thread belong to kVector neighbouring channels.
    AT_DEVICE void weights(const Params& params, uint32_t ring) const {
      if (part > 1) return;
      const Element* from = (const Element*)params.p.p[part ? kWeight2 : kWeight1];
      const int depth = params.depth[part], filters = part ? params.a.k : params.a.hidden;
      const uint32_t to = ring + slot * kStageBytes + 16 * (threadIdx.x % kLanes);
      const int unit = threadIdx.x % kLanes, left = depth - k - 8 * unit;
      AT_UNROLL for (int i = 0; i < (kN + kCopied - 1) / kCopied; ++i) {
        const int row = i * kCopied + threadIdx.x / kLanes, filter = slice * kN + row;
        if (kN % kCopied && row >= kN) break;
        constexpr int kBlock = 8 * kGroup;
        const int at = row / kBlock * kBlock + row % kVector / 2 * 8 + row % kBlock / kVector * 2 + row % 2;
        const Element* source = from + (int64_t)(filter < filters ? filter : 0) * depth + k + 8 * unit;
        AT_UNROLL for (int u = 0; u < kUnits; u += kLanes) {
          const bool inside = filter < filters && 8 * u < left;
          copy_async(to + at * kPitch + 16 * u, inside ? source + 8 * u : from, 16, inside);
        }
      }
    }

    // Starts to copy the step's input of a 1x1 convolution.
    AT_DEVICE void input(const Params& params, const int* pixels, uint32_t ring) const {
      if (kPatch || part > 0) return;
      const Element* from = (const Element*)params.p.p[kX];
      const int unit = threadIdx.x % kLanes, left = params.a.c - k - 8 * unit;
      const uint32_t to = ring + slot * kStageBytes + kN * kPitch + 16 * unit;
      AT_UNROLL for (int i = 0; i < (First::kM + kCopied - 1) / kCopied; ++i) {
        const int row = i * kCopied + threadIdx.x / kLanes;
        if (First::kM % kCopied && row >= First::kM) break;
        const int pixel = pixels[pass * First::kM + row];
        const Element* source = from + (int64_t)max(pixel, 0) * params.a.c + k + 8 * unit;
        AT_UNROLL for (int u = 0; u < kUnits; u += kLanes) {
          const bool inside = pixel >= 0 && 8 * u < left;
          copy_async(to + row * kPitch + 16 * u, inside ? source + 8 * u : from, 16, inside);
        }
      }
    }
  };

  // Finds the input pixels of a 1x1 convolution: their indices in x, or -1 outside of the image.
  AT_DEVICE static void find_pixels(const Params& params, const Tile& tile, int* pixels) {
    for (int m = threadIdx.x; m < kListed; m += kThreads) {
      const Pixel<First> own(m);
      const int n = tile.image + own.image, h = (tile.top + own.row) * kStride1 - params.a.first_pad_h,
                w = (tile.left + own.column) * kStride1 - params.a.first_pad_w;
      const bool inside = m < First::kPixels && n < params.a.n && h >= 0 && h < params.a.h && w >= 0 && w < params.a.w;
      pixels[m] = inside ? (n * params.a.h + h) * params.a.w + w : -1;
    }
  }

  // Starts to copy the input of a 3x3 convolution, with zeros outside of the image.
  AT_DEVICE static void load_patch(const Params& params, const Tile& tile, uint32_t to) {
    const int units = params.a.c / 8, top = tile.top * kStride1 - params.a.first_pad_h,
              left = tile.left * kStride1 - params.a.first_pad_w;
    for (int i = threadIdx.x; i < kImages * kInputH * kInputW * units; i += kThreads) {
      const int pixel = i / units, unit = i - pixel * units;
      const int image = pixel / (kInputH * kInputW), row = pixel / kInputW % kInputH, column = pixel % kInputW;
      const int n = tile.image + image, h = top + row, w = left + column;
      const bool inside = n < params.a.n && h >= 0 && h < params.a.h && w >= 0 && w < params.a.w;
      const int64_t offset = inside ? ((int64_t)(n * params.a.h + h) * params.a.w + w) * params.a.c + 8 * unit : 0;
      copy_async(to + image * params.input.image + row * params.input.row +
                     place_of_column<kStride1, kInputW>(column) * params.input.pixel + 16 * unit,
                 (const Element*)params.p.p[kX] + offset, 16, inside);
    }
  }

  AT_DEVICE static void run(const Params& params, char* shared) {
    const Tile tile(params);
    const Warp warp;
    const uint32_t memory = ptx::cast_smem_ptr_to_uint(shared), ring = memory + params.ring;
    const uint32_t hidden = memory + params.input.bytes;
    int* pixels = (int*)(shared + params.ring + kStages * kStageBytes);
    Loader loader;
    AT_UNROLL for (int i = 0; i < kStages - 1; ++i) {
      loader.weights(params, ring);
      loader.advance(params);
    }
    if constexpr (kWhole > 0)  // the border, which no pixel is written to
      for (int i = 16 * threadIdx.x; i < params.hidden.bytes; i += 16 * kThreads)
        ptx::st_shared(hidden + i, make_uint4(0, 0, 0, 0));
    if constexpr (!kPatch) {
      find_pixels(params, tile, pixels);
      __syncthreads();
    }
    griddepcontrol_wait();
    if constexpr (kPatch) load_patch(params, tile, memory);
    Loader early;
    AT_UNROLL for (int i = 0; i < kStages - 1; ++i) {
      early.input(params, pixels, ring);
      early.advance(params);
      commit_copies();
    }
    int slot = 0;  // the buffer that is multiplied next
    convolve<0, First>(
        params, pixels, warp, loader, slot, memory, ring, [](int, int) {},
        [&](auto& accum, int slice, int pass) {
          write_hidden(params, tile, warp, accum, slice, pass, shared + params.input.bytes);
        });
    Output output;
    convolve<1, Second>(
        params, pixels, warp, loader, slot, hidden, ring,
        [&](int slice, int pass) {
          if (Output::kEarly) output.begin(params, tile, warp, slice, pass);
        },
        [&](auto& accum, int slice, int pass) {
          if (slice + 1 == params.slices[1] && pass + 1 == Second::kPasses) launch_dependents();
          output.finish(params, tile, warp, accum, slice, pass);
        });
  }

 private:
  // Runs a convolution; calls begin(slice, pass) before the products of each pass, and finish(sums, slice, pass).
  template <int kIndex, typename Of, typename Begin, typename Finish>
  AT_DEVICE static void convolve(const Params& params, const int* pixels, const Warp& warp, Loader& loader, int& slot,
                                 uint32_t patch, uint32_t ring, const Begin& begin, const Finish& finish) {
    constexpr bool kFromRing = kIndex == 0 && !kPatch;
    const int lane = warp.lane, depth = params.depth[kIndex], each = params.channels[kIndex] / 16;
    // ldmatrix: the row of 8 elements whose address a lane passes.
    const uint32_t filters = ring + (warp.n + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 16;
    for (int slice = 0; slice < params.slices[kIndex]; ++slice)
      for (int pass = 0; pass < Of::kPasses; ++pass) {
        const int first = (pass * kWarpsM + warp.m) * Of::kRows;  // the warp's first block of 16 pixels
        uint32_t rows[Of::kRows];
        find_rows<kIndex, Of>(params, warp, first, kFromRing ? ring + kN * kPitch : patch, rows);
        begin(slice, pass);
        float accum[Of::kRows][kWarpN / 8][4] = {};
        int tap = 0, left = each, offset = 0;  // of the next product: its tap, products left of it, place in the patch
        for (int k = 0; k < depth; k += kDepth) {
          wait_for_copies<kStages - 2>();
          __syncthreads();
          const bool works = first < Of::kTiles;
          const uint32_t stage = slot * kStageBytes;
          const auto multiply = [&](int step) {
            uint32_t a[Of::kRows][4], b[kWarpN / 16][4];
            const uint32_t from = kFromRing ? stage + 32 * step : offset;
            AT_UNROLL for (int m = 0; m < Of::kRows; ++m)
              load_matrices(a[m], rows[m] + from);
            AT_UNROLL for (int n = 0; n < kWarpN / 16; ++n)
              load_matrices(b[n], filters + stage + n * 16 * kPitch + 32 * step);
            AT_UNROLL for (int m = 0; m < Of::kRows; ++m) AT_UNROLL
              for (int n = 0; n < kWarpN / 8; ++n)
                mma<Element>(accum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
            if constexpr (!kFromRing) {
              offset += 32;
              if (--left == 0) left = each, offset = params.taps[kIndex][++tap];
            }
          };
          if (works) multiply(0);
          // The next copies overwrite the step before this one, which all threads have multiplied.
          loader.weights(params, ring);
          loader.input(params, pixels, ring);
          loader.advance(params);
          commit_copies();
          if (works && depth - k >= kDepth) {
            AT_UNROLL for (int step = 1; step < kDepth / 16; ++step)
              multiply(step);
          } else if (works) {
            AT_NO_UNROLL for (int step = 1; 16 * step < depth - k; ++step)
              multiply(step);
          }
          if (++slot == kStages) slot = 0;
        }
        finish(accum, slice, pass);
      }
  }

  // Finds the rows that this lane passes to ldmatrix, without stage, tap and step.
  template <int kIndex, typename Of>
  AT_DEVICE static void find_rows(const Params& params, const Warp& warp, int first, uint32_t base,
                                  uint32_t (&rows)[Of::kRows]) {
    AT_UNROLL for (int i = 0; i < Of::kRows; ++i) {
      const int row = 16 * i + warp.lane % 16, m = 16 * first + row;
      if constexpr (kIndex == 0 && !kPatch) {
        rows[i] = base + (warp.m * Of::kRows * 16 + row) * kPitch;
      } else {
        const Patch& patch = kIndex == 0 ? params.input : params.hidden;
        constexpr int kStep = kIndex == 0 ? kStride1 : kStride;
        const Pixel<Of> own(m < Of::kPixels ? m : 0);
        // An even column is its half in the order of a stride of 2.
        rows[i] = base + own.image * patch.image + own.row * kStep * patch.row + own.column * patch.pixel;
      }
      rows[i] += warp.lane / 16 * 16;
    }
  }

  // Takes kVector neighbouring channels of a pixel from the sums: those of lane / 4 + 8 half in block m.
  template <int kRows>
  AT_DEVICE static void take(float (&v)[kVector], const float (&accum)[kRows][kWarpN / 8][4], int m, int half,
                             int group) {
    AT_UNROLL for (int e = 0; e < kVector; ++e)
      v[e] = accum[m][group * kGroup + e / 2][2 * half + e % 2];
  }

  // Applies the inner steps and writes a pass of the hidden tile.
  AT_DEVICE static void write_hidden(const Params& params, const Tile& tile, const Warp& warp,
                                     const float (&accum)[First::kRows][kWarpN / 8][4], int slice, int pass,
                                     char* hidden) {
    const at_conv2d_pair& a = params.a;
    const int down = kWhole == 2 ? a.pad_h : 0, right = kWhole >= 1 ? a.pad_w : 0;
    AT_UNROLL for (int i = 0; i < First::kRows; ++i) AT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int m = 16 * ((pass * kWarpsM + warp.m) * First::kRows + i) + 8 * half + warp.lane / 4;
        const Pixel<First> own(m);
        const int row = own.row + down, column = own.column + right, h = tile.top + own.row, w = tile.left + own.column;
        if (m >= First::kPixels || row >= kHaloH || column >= kHaloW) continue;
        const bool inside = tile.image + own.image < a.n && h >= 0 && h < a.hidden_h && w >= 0 && w < a.hidden_w;
        char* to = hidden + own.image * params.hidden.image + row * params.hidden.row +
                   place_of_column<kStride, kHaloW>(column) * params.hidden.pixel;
        AT_UNROLL for (int group = 0; group < kWarpN / (8 * kGroup); ++group) {
          const int channel = slice * kN + warp.n + group * 8 * kGroup + warp.lane % 4 * kVector;
          if (channel >= a.hidden) continue;
          float v[kVector] = {};
          if (inside) {
            take(v, accum, i, half, group);
            Steps::inner(v, params.p.p, a.scalars, channel);
          }
          store(v, (Element*)to + channel);
        }
      }
  }

  // Applies the steps behind the second convolution to a pass and writes the output. The steps' tensors are loaded
  // kAhead blocks of 16 pixels ahead: those of the first ones before the products, if the sums leave registers for
  // them.
  struct Output {
    static constexpr bool kOne = sizeof(typename Steps::Fetched) <= 16;  // at most one tensor
    static constexpr bool kEarly = kOne && Second::kRows * kWarpN <= 128;
    static constexpr int kGroups = kWarpN / (8 * kGroup), kAhead = kOne && Second::kRows > 1 ? 2 : 1;
    typename Steps::Fetched fetched[kAhead][2][kGroups];
    int pixels[kAhead][2];  // indices of pixels in y, or -1

    AT_DEVICE void fetch(const Params& params, const Tile& tile, const Warp& warp, int slice, int pass, int i) {
      const at_conv2d_pair& a = params.a;
      const int first = slice * kN + warp.n + warp.lane % 4 * kVector;
      AT_UNROLL for (int half = 0; half < 2; ++half) {
        const int m = 16 * ((pass * kWarpsM + warp.m) * Second::kRows + i) + 8 * half + warp.lane / 4;
        const Pixel<Second> own(m);
        const int n = tile.image + own.image, p = tile.p + own.row, q = tile.q + own.column;
        const bool inside = m < Second::kPixels && n < a.n && p < a.p && q < a.q;
        const int pixel = inside ? (n * a.p + p) * a.q + q : -1;
        pixels[i % kAhead][half] = pixel;
        AT_UNROLL for (int group = 0; group < kGroups; ++group)
          if (inside && first + group * 8 * kGroup < a.k)
            Steps::fetch(fetched[i % kAhead][half][group], params.p.p,
                         (int64_t)pixel * a.k + first + group * 8 * kGroup);
      }
    }

    AT_DEVICE void begin(const Params& params, const Tile& tile, const Warp& warp, int slice, int pass) {
      AT_UNROLL for (int i = 0; i < kAhead; ++i)
        fetch(params, tile, warp, slice, pass, i);
    }

    AT_DEVICE void finish(const Params& params, const Tile& tile, const Warp& warp,
                          const float (&accum)[Second::kRows][kWarpN / 8][4], int slice, int pass) {
      const at_conv2d_pair& a = params.a;
      const int first = slice * kN + warp.n + warp.lane % 4 * kVector;
      if (!kEarly) begin(params, tile, warp, slice, pass);
      AT_UNROLL for (int i = 0; i < Second::kRows; ++i) {
        AT_UNROLL for (int half = 0; half < 2; ++half) {
          const int pixel = pixels[i % kAhead][half];
          if (pixel < 0) continue;
          AT_UNROLL for (int group = 0; group < kGroups; ++group) {
            const int channel = first + group * 8 * kGroup;
            if (channel >= a.k) continue;
            const int64_t offset = (int64_t)pixel * a.k + channel;
            float v[kVector];
            take(v, accum, i, half, group);
            Steps::apply(v, params.p.p, a.scalars, channel, offset, fetched[i % kAhead][half][group]);
            store(v, (Element*)params.p.p[kY] + offset);
          }
        }
        if (i + kAhead < Second::kRows) fetch(params, tile, warp, slice, pass, i + kAhead);
      }
    }
  };
};

}  // namespace at
