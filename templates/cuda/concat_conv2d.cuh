// A 1x1 convolution of concatenated inputs with steps before it, by mma.sync, for sm_80 and later; NHWC.
//
// A block computes kM pixels x kN output channels. The channels of the concatenation come in chunks of kK = 64, through
// a ring of kStages buffers with the chunk's pixels and weights, which cp.async fills. Each 16-byte unit of eight
// channels lies in one of the inputs. The thread that has copied a unit applies the steps before the convolution to it,
// in shared memory, before the warps multiply; so the concatenation is never in device memory, with or without the
// steps.
//
// A row of shared memory holds the 64 channels of a pixel or a filter: 128 bytes. Unit u of a row is stored in place
// u ^ key, so that the eight rows that ldmatrix reads at once lie in different banks. The rows of filters are read in a
// permuted order, so that the accumulators of a thread belong to eight neighbouring channels.
#pragma once
#include "common/copies.cuh"
#include "common/fast_divmod.cuh"
#include "common/mma.cuh"
#include "concat.h"

namespace at {

template <typename Config>
struct ConcatConv2d {
  using Element = typename Config::Element;
  using Steps = typename Config::Steps;
  static constexpr int kM = Config::kM, kN = Config::kN, kWarpM = Config::kWarpM, kWarpN = Config::kWarpN;
  static constexpr int kStages = Config::kStages, kVector = 8, kK = 64, kUnits = kK / kVector, kRowBytes = 128;
  static constexpr int kAcross = kN / kWarpN, kThreads = 32 * (kM / kWarpM) * kAcross;
  static constexpr int kRows = kM / kWarpM, kBlocks = kWarpM / 16, kColumns = kWarpN / 32;
  static constexpr int kStageBytes = (kM + kN) * kRowBytes;
  static constexpr int kStride = kThreads / kUnits;  // rows between two units of a thread
  static constexpr int kOwn = kM / kStride;          // units of pixels that a thread copies, all of the same channels
  static_assert(kM % kStride == 0 && kN % kStride == 0, "each thread copies the same number of units");

  struct Params {
    at_concat_conv2d a;
    int pixels, chunks, across;
    FastDivmod by_image;  // pixels of an image
    at_pointers p;
  };

  AT_DEVICE static void prepare(const at_concat_conv2d& a, at_prepared* out) {
    bool whole = a.c % kVector == 0 && a.k % kVector == 0;
    for (int i = 0; i < a.count; ++i)
      whole &= a.pitch[i] % kVector == 0 && a.first[i] % kVector == 0 && a.end[i] % kVector == 0;
    if (!whole) return refused(out, "all pieces and the output must have multiples of 8 channels");
    const int64_t pixels = (int64_t)a.n * a.h * a.w;
    if (pixels > 0x7fffffff) return refused(out, "the images must have fewer than 2^31 pixels");
    Params params{a, (int)pixels, ceil_div(a.c, kK), ceil_div(a.k, kN), FastDivmod::make(a.h * a.w), {}};
    prepared(out, params, ceil_div(pixels, kM) * params.across, 1, 1, kThreads, kStages * kStageBytes, 0);
  }

  // What a thread copies: one unit of the channels of a chunk, in several rows of pixels and of filters.
  struct Copier {
    int unit, row, first_pixel, first_filter;

    AT_DEVICE explicit Copier(const Params& params) : unit(threadIdx.x % kUnits), row(threadIdx.x / kUnits) {
      const int tile = blockIdx.x / params.across;
      first_pixel = tile * kM, first_filter = (blockIdx.x - tile * params.across) * kN;
    }

    AT_DEVICE static uint32_t pixel_place(int row, int unit) { return row * kRowBytes + ((unit ^ row % 8) * 16); }

    AT_DEVICE static uint32_t filter_place(int row, int unit) {
      return kM * kRowBytes + row * kRowBytes + ((unit ^ (row / 8 % 4 * 2 + row % 2)) * 16);
    }

    // Starts to copy the weights of a chunk; zeros beyond the last channel and the last filter.
    AT_DEVICE void load_filters(const Params& params, int chunk, uint32_t to) const {
      const int channel = chunk * kK + unit * kVector;
      const Element* from = (const Element*)params.p.p[params.a.count];
      AT_UNROLL for (int i = 0; i < kN / kStride; ++i) {
        const int filter = first_filter + row + i * kStride;
        const bool inside = channel < params.a.c && filter < params.a.k;
        copy_async(to + filter_place(row + i * kStride, unit),
                   from + (inside ? (int64_t)filter * params.a.c + channel : 0), 16, inside);
      }
    }

    // Starts to copy the pixels of a chunk; zeros beyond the last channel, and the last pixel again beyond it.
    AT_DEVICE void load_pixels(const Params& params, int chunk, uint32_t to) const {
      const at_concat_conv2d& a = params.a;
      const int channel = chunk * kK + unit * kVector;
      const bool inside = channel < a.c;
      int piece = 0, begin = 0;
      AT_UNROLL for (int k = 0; k + 1 < AT_MAX_PIECES; ++k)
        if (inside && channel >= a.end[k]) piece = k + 1, begin = a.end[k];
      const int pitch = a.pitch[piece];
      const Element* from = (const Element*)params.p.p[piece] + (inside ? a.first[piece] + channel - begin : 0);
      AT_UNROLL for (int i = 0; i < kOwn; ++i) {
        const int pixel = min(first_pixel + row + i * kStride, params.pixels - 1);
        copy_async(to + pixel_place(row + i * kStride, unit), from + (int64_t)pixel * pitch, 16, inside);
      }
    }

    // Applies the steps before the convolution to the units that this thread has copied.
    AT_DEVICE void apply(const Params& params, int chunk, char* stage) const {
      const int channel = chunk * kK + unit * kVector, c = params.a.c;
      if (channel >= c) return;
      Pack<Element, kVector> units[kOwn];  // all are read before one is written, so that vectors are read once
      AT_UNROLL for (int i = 0; i < kOwn; ++i)
        units[i].read((const Element*)(stage + pixel_place(row + i * kStride, unit)));
      AT_UNROLL for (int i = 0; i < kOwn; ++i) {
        const int pixel = min(first_pixel + row + i * kStride, params.pixels - 1);
        float v[kVector];
        AT_UNROLL for (int e = 0; e < kVector; ++e)
          v[e] = to_float(units[i].elements[e]);
        Steps::before(v, params.p.p, params.a, channel, (int64_t)pixel * c + channel, pixel, params.by_image);
        units[i] = rounded<Element>(v);
      }
      AT_UNROLL for (int i = 0; i < kOwn; ++i)
        units[i].write((Element*)(stage + pixel_place(row + i * kStride, unit)));
    }
  };

  using Accum = float[kBlocks][4 * kColumns][4];

  // sums += pixels filters^T of one stage.
  AT_DEVICE static void multiply(uint32_t stage, int first_row, int first_column, Accum& accum) {
    const int lane = threadIdx.x % 32, r = lane % 8, matrix = lane / 8;
    AT_UNROLL for (int step = 0; step < kK / 16; ++step) {
      uint32_t a[kBlocks][4];
      AT_UNROLL for (int m = 0; m < kBlocks; ++m)
        load_matrices(a[m], stage + Copier::pixel_place(first_row + m * 16 + lane % 16, 2 * step + lane / 16));
      AT_UNROLL for (int column = 0; column < kColumns; ++column) AT_UNROLL
        for (int pair = 0; pair < 2; ++pair) {
          uint32_t b[4];
          const int filter = first_column + 32 * column + r / 2 * 8 + 2 * (2 * pair + matrix / 2) + r % 2;
          load_matrices(b, stage + Copier::filter_place(filter, 2 * step + matrix % 2));
          AT_UNROLL for (int m = 0; m < kBlocks; ++m) {
            mma<Element>(accum[m][4 * column + 2 * pair], a[m], b[0], b[1]);
            mma<Element>(accum[m][4 * column + 2 * pair + 1], a[m], b[2], b[3]);
          }
        }
    }
  }

  AT_DEVICE static void finish(const Params& params, const Copier& copier, int first_row, int first_column,
                               const Accum& accum) {
    const int lane = threadIdx.x % 32;
    AT_UNROLL for (int m = 0; m < kBlocks; ++m) AT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int pixel = copier.first_pixel + first_row + 16 * m + 8 * half + lane / 4;
        if (pixel >= params.pixels) continue;
        AT_UNROLL for (int column = 0; column < kColumns; ++column) {
          const int channel = copier.first_filter + first_column + 32 * column + lane % 4 * kVector;
          if (channel >= params.a.k) continue;
          float v[kVector];
          AT_UNROLL for (int e = 0; e < kVector; ++e)
            v[e] = accum[m][4 * column + e / 2][2 * half + e % 2];
          const int64_t offset = (int64_t)pixel * params.a.k + channel;
          Steps::after(v, params.p.p, params.a, channel, offset, pixel, params.by_image);
          store(v, (Element*)params.p.p[params.a.count + 1] + offset);
        }
      }
  }

  AT_DEVICE static void run(const Params& params, char* shared) {
    const Copier copier(params);
    const uint32_t memory = (uint32_t)__cvta_generic_to_shared(shared);
    const int warp = threadIdx.x / 32, first_row = warp / kAcross * kWarpM, first_column = warp % kAcross * kWarpN;

    AT_UNROLL for (int i = 0; i < kStages - 1; ++i)
      if (i < params.chunks) copier.load_filters(params, i, memory + i * kStageBytes);
    griddepcontrol_wait();
    AT_UNROLL for (int i = 0; i < kStages - 1; ++i) {  // the weights of all these stages belong to the first group
      if (i < params.chunks) copier.load_pixels(params, i, memory + i * kStageBytes);
      commit_copies();
    }
    Accum accum = {};
    int slot = 0;
    for (int chunk = 0; chunk < params.chunks; ++chunk) {
      wait_for_copies<kStages - 2>();
      if constexpr (Steps::kBefore) copier.apply(params, chunk, shared + slot * kStageBytes);
      __syncthreads();  // all threads have also read the stage before this one, which is filled again
      const int next = chunk + kStages - 1, freed = slot == 0 ? kStages - 1 : slot - 1;
      if (next < params.chunks) {
        copier.load_filters(params, next, memory + freed * kStageBytes);
        copier.load_pixels(params, next, memory + freed * kStageBytes);
      }
      commit_copies();
      multiply(memory + slot * kStageBytes, first_row, first_column, accum);
      if (++slot == kStages) slot = 0;
    }
    launch_dependents();
    finish(params, copier, first_row, first_column, accum);
  }
};

}  // namespace at
