// The copies of conv2d.cuh to shared memory: the input patch under a block's tile, and the weights.
#pragma once
#include "cuda/conv2d_plan.cuh"
#include "common/copies.cuh"

namespace at {

template <typename Config>
struct ImageLoads : ImagePlan<Config> {
  using Plan = ImagePlan<Config>;
  using typename Plan::Convolution, typename Plan::Element, typename Plan::Problem;
  using Plan::kBlock, Plan::kCopied, Plan::kFolded, Plan::kHidden, Plan::kK, Plan::kN, Plan::kRowBytes,
      Plan::kStageBytes;
  using Plan::kStages, Plan::kTaps, Plan::kUnitChannels, Plan::kUnits, Plan::over;
  static constexpr int kElementBytes = sizeof(Element);

  // The first output pixel and output channel of a block's tile.
  struct Place {
    int image, row, column, channel;
    AT_DEVICE explicit Place(const Convolution& params) {
      const int tiles = params.tiles_p * params.tiles_q;
      image = blockIdx.x, row = column = 0, channel = blockIdx.y * kN;
      if (tiles > 1) {  // skipped for one tile per image: divisions would dominate the prologue of a small kernel
        const int index = blockIdx.x % tiles;
        image = blockIdx.x / tiles, row = index / params.tiles_q * params.tile_p,
        column = index % params.tiles_q * params.tile_q;
      }
      image *= params.images;
    }
  };

  // The position of pixel m of the tile: image, row and column, relative to the tile's first pixel.
  struct Pixel {
    int image, row, column;
    AT_DEVICE Pixel(const Convolution& params, int m) {
      image = over(m, params.by_tile);
      const int rest = m - image * params.tile_p * params.tile_q;
      row = over(rest, params.by_q), column = rest - row * params.tile_q;
    }
  };

  // The first patch pixel that this thread copies, and the 16-byte unit that it copies of every pixel.
  struct Copier {
    int image, row, column, unit;
    AT_DEVICE explicit Copier(const Convolution& params) {
      const int pixel = threadIdx.x / kUnits;
      image = over(pixel, params.by_patch), column = pixel - image * (params.patch_h * params.patch_w);
      row = over(column, params.by_patch_w), column -= row * params.patch_w, unit = threadIdx.x % kUnits;
    }
  };

  AT_DEVICE static void load_patch(const Convolution& params, const Element* from, const Place& at, Copier copier,
                                   int chunk, uint32_t to) {
    const Problem& a = params.a;
    const int channel = chunk * kK + copier.unit * kUnitChannels, halved = a.stride_h - 1;
    const int top = at.row * a.stride_h - a.pad_h, left = at.column * a.stride_w - a.pad_w;
#pragma unroll 2
    for (int pixel = threadIdx.x / kUnits; pixel < params.pixels; pixel += kCopied) {
      const int n = at.image + copier.image, h = top + copier.row, w = left + copier.column;
      const bool inside = (unsigned)h < (unsigned)a.h && (unsigned)w < (unsigned)a.w && n < a.n && channel < a.c;
      const int output =
          (copier.image * params.tile_p + (copier.row >> halved)) * params.tile_q + (copier.column >> halved);
      const int64_t offset = (((int64_t)n * a.h + h) * a.w + w) * a.c + channel;
      copy_async(to + pixel * kRowBytes + ((copier.unit ^ output & 7) << 4), from + (inside ? offset : 0), 16, inside);
      copier.column += params.next_column, copier.row += params.next_row, copier.image += params.next_image;
      if (copier.column >= params.patch_w) copier.column -= params.patch_w, ++copier.row;
      if (copier.row >= params.patch_h) copier.row -= params.patch_h, ++copier.image;
    }
  }

  // Copies the weights, one step per call of load_step(). A thread copies one unit of every kCopied-th filter.
  struct Weights {
    static constexpr int kFilters = kN / kCopied, kHiddenFilters = (kHidden + kCopied - 1) / kCopied;
    static constexpr bool kSameKeys = kCopied % 32 == 0;  // whether all filters of a thread have one swizzle key
    const char* from;                                     // this thread's unit of its first filter
    const char* second;                                   // the same in a block's second weights
    int chunk = 0, tap = 0, slot = 0, channel;
    const char* hidden_from;  // the same in the filters of the hidden values
    uint32_t to, known;       // address of the unit in the first buffer; bit i is set if the i-th filter exists
    uint32_t hidden_to, hidden_known;
    // p: points to the pointer of the weights. Next to it is the pointer of a block's second weights, or of the hidden
    // values' filters.
    AT_DEVICE Weights(const Convolution& params, void* const* p, const Place& at, uint32_t ring) {
      const int row = threadIdx.x / kUnits;
      channel = threadIdx.x % kUnits * kUnitChannels;
      const int64_t first = ((int64_t)(at.channel + row) * params.taps * params.a.c + channel) * kElementBytes;
      from = (const char*)p[0] + first;
      if constexpr (kBlock) second = (const char*)p[1] + first;
      known = 0;
      AT_UNROLL for (int i = 0; i < kFilters; ++i)
        known |= (at.channel + row + i * kCopied < params.a.k) << i;
      to = ring + row * kRowBytes;
      if constexpr (kSameKeys) to += swizzled(0);
      if constexpr (kFolded) {
        hidden_from = (const char*)p[1] + ((int64_t)row * params.taps * params.a.c + channel) * kElementBytes;
        hidden_known = 0;
        AT_UNROLL for (int i = 0; i < kHiddenFilters; ++i)
          hidden_known |= (row + i * kCopied < params.hidden) << i;
        hidden_to = ring + (kN + row) * kRowBytes + (((int)threadIdx.x % kUnits ^ row % 8) << 4);
      }
    }
    // Returns the swizzled byte offset of this thread's unit in the row of its i-th filter.
    AT_DEVICE static uint32_t swizzled(int i) {
      const int row = threadIdx.x / kUnits + i * kCopied, key = row % 32 / 8 * 2 + row % 2;
      return ((int)threadIdx.x % kUnits ^ key) << 4;
    }
    AT_DEVICE void load_step(const Convolution& params) {
      if (chunk < params.chunks) {
        const uint32_t tap_bytes = params.a.c * kElementBytes, filter_bytes = kCopied * params.taps * tap_bytes;
        const bool inside = channel < params.a.c;
        AT_UNROLL for (int t = 0; t < kTaps; ++t) AT_UNROLL
          for (int i = 0; i < kFilters; ++i)
            copy_async(to + slot * kStageBytes + (t * Plan::kFilters + i * kCopied) * kRowBytes +
                           (kSameKeys ? 0 : swizzled(i)),
                       from + (i * filter_bytes + t * tap_bytes), 16, inside && (known >> i & 1));
        if constexpr (kFolded) {
          // The rows that a thread copies are a multiple of 8 apart, so they have one key.
          AT_UNROLL for (int t = 0; t < kTaps; ++t) AT_UNROLL
            for (int i = 0; i < kHiddenFilters; ++i)
              if ((int)threadIdx.x / kUnits + i * kCopied < kHidden)
                copy_async(hidden_to + slot * kStageBytes + (t * Plan::kFilters + i * kCopied) * kRowBytes,
                           hidden_from + (i * filter_bytes + t * tap_bytes), 16, inside && (hidden_known >> i & 1));
          hidden_from += kTaps * tap_bytes;
          if (tap + kTaps == params.taps) hidden_from += kRowBytes - (int)(params.taps * tap_bytes);
        }
        from += kTaps * tap_bytes, tap += kTaps;
        if (tap == params.taps) {
          tap = 0, ++chunk;
          if constexpr (kBlock) from = second;
          else channel += kK, from += kRowBytes - (int)(params.taps * tap_bytes);
        }
      }
      if (++slot == kStages) slot = 0;
    }
  };
};

}  // namespace at
