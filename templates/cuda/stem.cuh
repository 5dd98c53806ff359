// A convolution with few input channels and NHWC output. As the first layers of a network it also reads the image in
// NCHW, torch's default, and applies the 3x3 max pool after it.
//
// No im2col matrix is built. Its columns run over lines. A line is one row of the filter, in one channel (planes) or in
// all channels (interleaved), padded with zeros to 4 taps or a multiple of 8. If stride times the elements of a pixel
// is even, the lines of neighbouring pixels are a whole number of 32-bit words apart. The image lies unchanged in
// shared memory, and the word with taps 2t and 2t + 1 of a pixel is at pixel * distance + t: one 32-bit load fills one
// register of the tensor-core operand. If the padding is odd, a zero tap in front of the line makes it even, so that
// words stay aligned. The weights stay in place for all tiles of a block: in registers for mma.sync, in shared memory
// for wgmma.
//
// A warp computes strips of 16 pixels, from top to bottom. With a pool, row g of operand A is pixel 2g and row g + 8 is
// pixel 2g + 1. Of a pool window's three columns a thread then holds two, and the neighbouring thread holds the third.
// A strip gives seven pooled pixels, and the next strip begins 14 pixels further. The last of a window's three rows is
// the first row of the window below, so it is kept. Without a pool, rows g and g + 8 are pixels g and g + 8. The
// weights are permuted so that a thread's accumulators belong to eight neighbouring channels.
//
// The zeros of a padded line multiply a pixel outside of the filter. So an infinity in the image can turn outputs one
// pixel further into NaN.
#pragma once
#include "common/copies.cuh"
#include "cuda/largest.cuh"
#include "common/mma.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/wgmma.cuh"

namespace at {

template <typename Config>
struct StemKernel {
  using Element = typename Config::Element;
  using Stored = typename Config::Stored;  // of the result
  using Problem = typename Config::Problem;
  using Launch = typename Config::Launch;
  using Params = Plain<Problem>;
  static constexpr int kFilter = Config::kFilter, kChannels = Config::kChannels, kN = Config::kN;
  static constexpr int kStrips = Config::kStrips, kRows = Config::kRows, kStages = Config::kStages;
  static constexpr bool kPool = Config::kPool, kWgmma = Config::kWgmma;
  static constexpr int kThreads = 32 * kStrips * Config::kSlices;

  static constexpr bool kInterleaved = Config::kInterleaved;
  static constexpr int kStride = Config::kStride;
  static constexpr int kPlanes = kInterleaved ? 1 : kChannels;
  static constexpr int kSide = kInterleaved ? kChannels : 1;  // elements of one pixel in a row
  static constexpr int kPixel = kStride * kSide / 2;          // words between the lines of neighbouring pixels
  static_assert(kStride * kSide % 2 == 0, "lines begin whole words apart");

  static constexpr int kPad = kFilter / 2, kLead = kPad * kSide % 2;
  static constexpr int kLine = kFilter * kSide, kLines = kPlanes * kFilter;
  static constexpr int kTaps = kLead + kLine <= 4 ? 4 : (kLead + kLine + 7) / 8 * 8;
  static constexpr int kSteps = (kLines * kTaps + 15) / 16;
  // Pixels from row g of operand A to row g + 1, and to row g + 8.
  static constexpr int kFirst = kPool ? 2 : 1, kSecond = kPool ? 1 : 8;
  static constexpr int kStripPixels = kPool ? 14 : 16, kStripOutputs = kPool ? 7 : 16;
  static constexpr int kConvRows = kPool ? 2 * kRows + 1 : kRows;

  // A tile of the image in shared memory, (plane, row, element), copied in accesses of kAccess elements.
  static constexpr int kAccess = Config::kAccess;
  static constexpr int kTall = kStride * (kConvRows - 1) + kFilter;
  static constexpr int kWords = ((kStrips - 1) * kStripPixels + 15) * kPixel + kTaps / 2 + kAccess / 2 - 1;
  static constexpr int kPitch = (kWords + 3) / 4 * 4;
  static constexpr int kStageBytes = kPlanes * kTall * kPitch * 4;
  static constexpr int kWeightBytes = kWgmma ? kSteps * kN * 32 : 0;
  static constexpr int kSharedBytes = kStages * kStageBytes + (kWgmma ? kWeightBytes + 256 : 0);

  using Accum = float[kN / 2];

  // The tiles of a block: `count` tiles from output row `row` downwards.
  struct Place {
    int image, channel, row, column, count;
    AT_DEVICE explicit Place(const Problem& a) {
      const int walk = a.launch[Launch::kWalk], wide = columns(a), parts = ceil_div(ceil_div(a.p, kRows), walk);
      int index = blockIdx.x;
      column = index % wide * (kStrips * kStripOutputs), index /= wide;
      row = index % parts * walk * kRows, index /= parts;
      channel = index % channel_blocks(a) * (kN * Config::kSlices), image = index / channel_blocks(a);
      count = min(walk, (int)ceil_div(a.p - row, kRows));
    }
  };
  AT_DEVICE static int columns(const Problem& a) { return ceil_div(a.q, kStrips * kStripOutputs); }
  AT_DEVICE static int channel_blocks(const Problem& a) { return ceil_div(a.k, kN * Config::kSlices); }
  // Returns the first row or column of the convolution that an output row or column needs.
  AT_DEVICE static int conv_first(int output) { return kPool ? 2 * output - 1 : output; }
  // Returns the element of an image row where a block's words begin, before alignment to an access.
  AT_DEVICE static int window_first(const Place& at) {
    return (kStride * conv_first(at.column) - kPad) * kSide - kLead;
  }
  AT_DEVICE static int access_shift(const Place& at) { return window_first(at) & (kAccess - 1); }

  AT_DEVICE static void load_tile(const Params& params, const Place& at, int row, uint32_t stage) {
    const Problem& a = params.a;
    constexpr int kChunks = kPitch * 2 / kAccess, kAll = kPlanes * kTall * kChunks;
    const int top = kStride * conv_first(row) - kPad, left = window_first(at) - access_shift(at), wide = a.w * kSide;
    const Element* x = (const Element*)params.p.p[0] + (int64_t)at.image * kChannels * a.h * a.w;
    for (int i = threadIdx.x; i < kAll; i += kThreads) {
      const int line = i / kChunks, h = top + line % kTall, element = left + i % kChunks * kAccess;
      const bool inside = h >= 0 && h < a.h && element >= 0 && element < wide;
      const Element* from = x + ((int64_t)(line / kTall) * a.h + h) * wide + element;
      copy_async(stage + i * kAccess * 2, inside ? from : x, kAccess * 2, inside);
    }
  }

  // Returns two neighbouring weights along K as an operand register; n counts the permuted channels of a slice.
  AT_DEVICE static uint32_t weights(const Params& params, int first_channel, int n, int k) {
    const int channel = first_channel + n / 32 * 32 + n % 8 / 2 * 8 + n % 32 / 8 * 2 + n % 2;
    const int line = k / kTaps, tap = k % kTaps - kLead;
    const bool known = line < kLines && channel < params.a.k;
    const unsigned short* from =
        (const unsigned short*)params.p.p[1] + ((int64_t)channel * kLines + line) * kLine + tap;
    const uint32_t low = known && tap >= 0 && tap < kLine ? from[0] : 0;
    const uint32_t high = known && tap + 1 < kLine ? from[1] : 0;
    return low | high << 16;
  }

  // Loads operand A: taps 2t and 2t + 1 of both of a thread's pixels, for each half of a step.
  AT_DEVICE static void load_pixels(uint32_t (&a)[kSteps][4], const uint32_t* words) {
    AT_UNROLL for (int half = 0; half < 2 * kSteps; ++half) {
      const uint32_t* line;
      if constexpr (kTaps % 8 == 0) line = words + line_offset(half / (kTaps / 8)) + half % (kTaps / 8) * 4;
      else line = words + (threadIdx.x % 4 < 2 ? line_offset(2 * half) : line_offset(2 * half + 1));
      a[half / 2][half % 2 * 2] = line[0], a[half / 2][half % 2 * 2 + 1] = line[kSecond * kPixel];
    }
  }
  AT_DEVICE static constexpr int line_offset(int line) {
    const int known = line < kLines ? line : kLines - 1;  // the weights of lines beyond the last are zero
    return (known / kFilter * kTall + known % kFilter) * kPitch;
  }

  // The weights of all steps, and the products with them.
  struct Products {
    uint32_t shared;  // wgmma: address of the weights in shared memory; mma.sync: weights in `held`
    uint32_t held[kWgmma ? 1 : kSteps * kN / 4];

    // Computes kCount neighbouring rows of the convolution. words: this thread's first pixel and taps.
    template <int kCount>
    AT_DEVICE void rows(Accum (&accum)[kCount], const uint32_t* words) const {
      uint32_t a[kCount][kSteps][4];
      AT_UNROLL for (int row = 0; row < kCount; ++row)
        load_pixels(a[row], words + kStride * row * kPitch);
      if constexpr (kWgmma) {
        ptx::warpgroup_arrive();
        AT_UNROLL for (int row = 0; row < kCount; ++row) AT_UNROLL
          for (int step = 0; step < kSteps; ++step) {
            const uint64_t b =
                ptx::SmemDescriptor{ptx::descriptor_lo(shared + step * kN * 32), ptx::descriptor_hi<32>(256)};
            Config::wgmma(accum[row], a[row][step], b, step > 0);
          }
        ptx::warpgroup_commit_batch();
        ptx::warpgroup_wait<0>();
        ptx::warpgroup_fence_operand(accum);
      } else {
        AT_UNROLL for (int row = 0; row < kCount; ++row) AT_UNROLL
          for (int i = 0; i < kN / 2; ++i) accum[row][i] = 0.f;
        AT_UNROLL for (int step = 0; step < kSteps; ++step) AT_UNROLL
          for (int row = 0; row < kCount; ++row) AT_UNROLL
            for (int n8 = 0; n8 < kN / 8; ++n8) {
              const uint32_t* b = held + step * kN / 4 + 2 * n8;
              mma<Element>(reinterpret_cast<float (&)[4]>(accum[row][4 * n8]), a[row][step], b[0], b[1]);
            }
      }
    }
  };

  // best = max(best, sums): the maximum over the rows of a pool window so far.
  AT_DEVICE static void take(Accum& best, const Accum& accum) {
    AT_UNROLL for (int i = 0; i < kN / 2; ++i)
      best[i] = larger(best[i], accum[i]);
  }
  AT_DEVICE static void clear(Accum& best) {
    AT_UNROLL for (int i = 0; i < kN / 2; ++i)
      best[i] = lowest();
  }

  struct Column {
    int strip, conv, output, channel;  // strip index; this thread's first pixel and channel
    AT_DEVICE Column(const Place& at) {
      const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
      strip = warp % kStrips;
      conv = conv_first(at.column + strip * kStripOutputs) + kFirst * g;
      output = at.column + strip * kStripOutputs + g;
      channel = at.channel + warp / kStrips * kN + lane % 4 * 8;
    }
  };

  AT_DEVICE static void store(const Params& params, const Place& at, const Column& column, int row, const Accum& accum,
                              int pixel) {
    const Problem& a = params.a;
    const int q = column.output + pixel * kSecond;
    const bool extra = kPool && threadIdx.x % 32 >= 28;  // its pixels only serve the neighbouring thread
    if (row >= a.p || q >= a.q || extra) return;
    AT_UNROLL for (int block = 0; block < kN / 32; ++block) {
      const int channel = column.channel + 32 * block;
      if (channel >= a.k) return;
      float v[8];
      AT_UNROLL for (int j = 0; j < 4; ++j) {
        v[2 * j] = accum[16 * block + 4 * j + 2 * pixel];
        v[2 * j + 1] = accum[16 * block + 4 * j + 2 * pixel + 1];
      }
      const int64_t offset = (((int64_t)at.image * a.p + row) * a.q + q) * a.k + channel;
      Config::apply(v, params.p.p, a.scalars, channel, offset);
      at::store(v, (Stored*)params.p.p[2] + offset);
    }
  }

  // Stores the maximum over a pool window's three columns. best: the maximum over its three rows.
  AT_DEVICE static void store_pooled(const Params& params, const Place& at, const Column& column, int row,
                                     const Accum& best, int conv_q) {
    const bool first = column.conv >= 0 && column.conv < conv_q, second = column.conv + 1 < conv_q;
    Accum pooled;
    AT_UNROLL for (int i = 0; i < kN / 2; i += 4) AT_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float left = first ? best[i + e] : lowest(), middle = second ? best[i + 2 + e] : lowest();
        pooled[i + e] = larger(larger(left, middle), __shfl_down_sync(0xffffffffu, left, 4));
      }
    store(params, at, column, row, pooled, 0);
  }

  AT_DEVICE static void run(const Params& params, char* shared) {
    const Problem& a = params.a;
    const Place at(a);
    const Column column(at);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int conv_p = (a.h + 2 * kPad - kFilter) / kStride + 1, conv_q = (a.w + 2 * kPad - kFilter) / kStride + 1;

    uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    Products products;
    if constexpr (kWgmma) {
      const uint32_t aligned = (base + 255) & ~255u;  // the swizzle pattern repeats every 256 bytes
      shared += aligned - base, base = aligned;
      for (int i = threadIdx.x; i < kSteps * kN * 8; i += kThreads) {  // (step, n, k / 2)
        const int n = i / 8 % kN, k = i / 8 / kN * 16 + i % 8 * 2;
        const int place = i / 8 * 32 + (i % 8 / 4 ^ n / 4 % 2) * 16 + i % 4 * 4;
        *(uint32_t*)(shared + place) = weights(params, at.channel, n, k);
      }
      ptx::fence_view_async_shared();
      products.shared = base;
    } else {
      AT_UNROLL for (int i = 0; i < kSteps * kN / 4; ++i) {  // (step, eighth of the channels, half of the step)
        const int step = i / (kN / 4), n = i / 2 % (kN / 8) * 8 + lane / 4, k = 16 * step + i % 2 * 8 + lane % 4 * 2;
        products.held[i] = weights(params, at.channel + warp / kStrips * kN, n, k);
      }
    }
    griddepcontrol_wait();

    const uint32_t stages = base + kWeightBytes;
    const uint32_t* words = (const uint32_t*)(shared + kWeightBytes);
    words +=
        (column.strip * kStripPixels + lane / 4 * kFirst) * kPixel + access_shift(at) / 2 + lane % (kTaps == 4 ? 2 : 4);
    load_tile(params, at, at.row, stages);
    commit_copies();

    Accum best;
    clear(best);
    for (int tile = 0; tile < at.count; ++tile) {
      const int row = at.row + tile * kRows, conv_row = conv_first(row);
      const uint32_t* image = words + tile % kStages * (kStageBytes / 4);
      if (kStages == 2 && tile + 1 < at.count) {
        load_tile(params, at, row + kRows, stages + (tile + 1) % 2 * kStageBytes);
        commit_copies();
        wait_for_copies<1>();
      } else {
        wait_for_copies<0>();
      }
      __syncthreads();
      if (tile + 1 == at.count) launch_dependents();

      // The first row of the first window. Later windows keep the last row of the window above.
      if constexpr (kPool) {
        if (tile == 0) {
          Accum accum[1];
          products.rows(accum, image);
          if (conv_row >= 0) take(best, accum[0]);
        }
      }
      constexpr int kTogether = Config::kTogether, kMore = kPool ? 1 : 0, kEach = kPool ? 2 : kTogether;
      AT_NO_UNROLL for (int y = 0; y < kConvRows - kMore; y += kEach) {
        AT_UNROLL for (int part = 0; part < kEach; part += kTogether) {
          Accum accum[kTogether];
          products.rows(accum, image + kStride * (y + kMore + part) * kPitch);
          AT_UNROLL for (int i = 0; i < kTogether; ++i) {
            const int of_pool = part + i;
            if constexpr (kPool) {
              if (conv_row + 1 + y + of_pool < conv_p) take(best, accum[i]);
              if (of_pool == 1) {
                store_pooled(params, at, column, row + y / 2, best, conv_q);
                AT_UNROLL for (int j = 0; j < kN / 2; ++j)
                  best[j] = accum[i][j];
              }
            } else {
              store(params, at, column, row + y + i, accum[i], 0);
              store(params, at, column, row + y + i, accum[i], 1);
            }
          }
        }
      }
      __syncthreads();
      if (kStages == 1 && tile + 1 < at.count) {
        load_tile(params, at, row + kRows, stages);
        commit_copies();
      }
    }
  }

  AT_DEVICE static void prepare(const Problem& a, at_prepared* out) {
    bool as_compiled = a.c == kChannels && a.r == kFilter && a.s == kFilter && a.stride_h == kStride &&
                       a.stride_w == kStride && a.pad_h == kPad && a.pad_w == kPad;
    if constexpr (kInterleaved) as_compiled &= a.groups == 1 && a.dilation_h == 1 && a.dilation_w == 1;
    else if constexpr (kPool) as_compiled &= a.pool == 3 && a.pool_stride == 2 && a.pool_pad == 1;
    else as_compiled &= a.pool == 1 && a.pool_stride == 1 && a.pool_pad == 0;
    if (!as_compiled)
      return refused(out, "this kernel is compiled for another c, filter, stride, padding, dilation or pool");
    if (a.k % 8) return refused(out, "k must be a multiple of 8");
    if (a.w * kSide % kAccess) return refused(out, "w must be a multiple of the elements of a 16-byte access");
    if (a.launch[Launch::kWalk] < 1) return refused(out, "the launch value walk must be 1 or more");
    const int64_t parts = ceil_div(ceil_div(a.p, kRows), a.launch[Launch::kWalk]);
    prepared(out, Params{a, {}}, a.n * channel_blocks(a) * parts * columns(a), 1, 1, kThreads, kSharedBytes, 0);
  }
};

}  // namespace at
