// Convolution with narrow groups by mma.sync, for sm_80 and later; NHWC, as many input as output channels.
//
// For eight output channels of a group, sums (16 pixels x 8 channels) += inputs (16 pixels x 16) weights (16 x 8),
// where the inner dimension runs over units of eight input channels of a tap of the filter; a product has two units.
// The inputs of a tile lie in shared memory as in global memory, so that a row of ldmatrix is a unit of one pixel. A
// pixel has an odd number of 16-byte units, so that the eight pixels that ldmatrix reads at once lie in different
// banks.
//
// Narrower groups, of one channel (a depthwise convolution) or four, are computed eight channels at a time: the weights
// between two groups are zeros. The tensor cores have time for that, as such a convolution waits for memory.
//
// A warp keeps the weights of its eight output channels in registers. After the products a lane has two channels of
// pixels that are eight apart; four lanes exchange them, so that each stores eight channels of one pixel.
#pragma once
#include "common/copies.cuh"
#include "common/mma.cuh"

namespace at {

template <typename Config>
struct GroupedConv2d {
  using Element = typename Config::Element;
  using Steps = typename Config::Steps;
  static constexpr int kFilter = Config::kFilter, kStride = Config::kStride;
  static constexpr int kWidth = Config::kWidth;                             // channels of a group
  static constexpr int kChannels = Config::kChannels;                       // of a block
  static constexpr int kRows = Config::kRows, kColumns = Config::kColumns;  // of the outputs of a block
  static constexpr int kTiles = Config::kTiles;                             // of 16 pixels, of a warp
  static constexpr int kVector = 8, kBlocks = kChannels / kVector;          // of output channels
  static constexpr int kInner = kWidth < kVector ? kVector : kWidth;        // input channels of an output channel
  static constexpr int kTapUnits = kInner / kVector;
  static constexpr int kUnits = kFilter * kFilter * kTapUnits, kProducts = (kUnits + 1) / 2;
  static constexpr int kParts = kRows * kColumns / (16 * kTiles);  // warps with the same channels
  static constexpr int kThreads = 32 * kBlocks * kParts;
  static constexpr int kInRows = (kRows - 1) * kStride + kFilter, kInColumns = (kColumns - 1) * kStride + kFilter;
  static constexpr int kPixelBytes = (kBlocks | 1) * 16, kInputBytes = kInRows * kInColumns * kPixelBytes;
  static_assert(kTiles % 2 == 0 && kRows * kColumns % (16 * kTiles) == 0 && kChannels % kInner == 0);

  struct Params {
    at_conv2d a;
    int blocks, tiles_p, tiles_q;
    at_pointers p;
  };

  AT_DEVICE static void prepare(const at_conv2d& a, at_prepared* out) {
    if (a.c != a.k || a.c != a.groups * kWidth) return refused(out, "this kernel is compiled for another group width");
    if (a.c % kVector) return refused(out, "the channels must be a multiple of 8");
    const bool same = a.r == kFilter && a.s == kFilter && a.stride_h == kStride && a.stride_w == kStride;
    if (!same) return refused(out, "this kernel is compiled for another filter size or stride");
    if (a.dilation_h != 1 || a.dilation_w != 1) return refused(out, "dilation must be 1");
    const Params params{a, ceil_div(a.c, kChannels), ceil_div(a.p, kRows), ceil_div(a.q, kColumns), {}};
    const int64_t blocks = (int64_t)a.n * params.tiles_p * params.tiles_q * params.blocks;
    if (blocks > 0x7fffffff) return refused(out, "the grid would have more than 2^31 blocks");
    prepared(out, params, blocks, 1, 1, kThreads, kInputBytes, 0);
  }

  using Weights = uint32_t[2 * kProducts];

  // Reads this lane's weights of eight output channels from (k, r, s, c / groups): a pair of inputs of each unit.
  AT_DEVICE static void read_weights(const Params& params, int channel, Weights& to) {
    const int lane = threadIdx.x % 32, output = channel + lane / 4, input = lane % 4 * 2;
    const bool connected = output < params.a.c && (kWidth >= kVector || lane / 4 / kWidth == input / kWidth);
    const Element* from = (const Element*)params.p.p[1] + (int64_t)output * kFilter * kFilter * kWidth;
    if constexpr (kWidth == 1) {
      const bool first = output < params.a.c && input == lane / 4,
                 second = output < params.a.c && input + 1 == lane / 4;
      AT_UNROLL for (int i = 0; i < 2 * kProducts; ++i) {
        Pack<Element, 2> both;
        both.words[0] = 0;
        if (i < kUnits && first) both.elements[0] = from[i];
        if (i < kUnits && second) both.elements[1] = from[i];
        to[i] = both.words[0];
      }
      return;
    }
    AT_UNROLL for (int i = 0; i < 2 * kProducts; ++i) {
      const int at = i / kTapUnits * kWidth + i % kTapUnits * kVector + input % kWidth;
      to[i] = i < kUnits && connected ? *(const uint32_t*)(from + at) : 0;
    }
  }

  // Copies the inputs of a tile to shared memory; zeros outside of the image.
  AT_DEVICE static void load(const Params& params, int image, int top, int left, int first_channel, uint32_t shared) {
    const at_conv2d& a = params.a;
    const Element* from = (const Element*)params.p.p[0] + (int64_t)image * a.h * a.w * a.c;
#pragma unroll 4
    for (int i = threadIdx.x; i < kInRows * kInColumns * kBlocks; i += kThreads) {
      const int pixel = i / kBlocks, unit = i % kBlocks;
      const int row = top + pixel / kInColumns, column = left + pixel % kInColumns;
      const int channel = first_channel + unit * kVector;
      const bool inside = row >= 0 && row < a.h && column >= 0 && column < a.w && channel < a.c;
      const Element* vector = inside ? from + ((int64_t)row * a.w + column) * a.c + channel : from;
      copy_async(shared + pixel * kPixelBytes + unit * 16, vector, 16, inside);
    }
    wait_for_all_copies();
    __syncthreads();
  }

  // Bytes from a lane's first pixel to a unit.
  AT_DEVICE static constexpr int unit_offset(int unit) {
    const int tap = unit / kTapUnits;
    return (tap / kFilter * kInColumns + tap % kFilter) * kPixelBytes + unit % kTapUnits * 16;
  }

  // inputs: of the first tap, of the warp's group, in the tile's first pixel.
  AT_DEVICE static void multiply(uint32_t inputs, int first_site, const Weights& weights, float (&accum)[kTiles][4]) {
    const int lane = threadIdx.x % 32;
    uint32_t pixels[kTiles];
    AT_UNROLL for (int j = 0; j < kTiles; ++j) {
      const int site = first_site + 16 * j + lane % 16;
      pixels[j] = inputs + (site / kColumns * kInColumns + site % kColumns) * kStride * kPixelBytes;
    }
    AT_UNROLL for (int i = 0; i < kProducts; ++i) {
      // The last unit of an odd number has no partner: its weights are zeros, and its inputs are those of the first.
      const int offset = lane < 16 ? unit_offset(2 * i) : unit_offset(2 * i + 1 < kUnits ? 2 * i + 1 : 0);
      AT_UNROLL for (int j = 0; j < kTiles; ++j) {
        uint32_t a[4];
        load_matrices(a, pixels[j] + offset);
        mma<Element>(accum[j], a, weights[2 * i], weights[2 * i + 1]);
      }
    }
  }

  // Exchanges the sums of 32 pixels among four lanes: v becomes eight channels of the pixel
  // lane % 4 / 2 * 16 + lane % 2 * 8 + lane / 4.
  AT_DEVICE static void transpose(const float (&first)[4], const float (&second)[4], float (&v)[kVector]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    float half[2][4];
    AT_UNROLL for (int e = 0; e < 2; ++e) {
      const float kept[2] = {odd ? first[2 + e] : first[e], odd ? second[2 + e] : second[e]};
      const float sent[2] = {odd ? first[e] : first[2 + e], odd ? second[e] : second[2 + e]};
      AT_UNROLL for (int i = 0; i < 2; ++i) {
        const float got = __shfl_xor_sync(0xffffffffu, sent[i], 1);
        half[i][e] = odd ? got : kept[i], half[i][2 + e] = odd ? kept[i] : got;
      }
    }
    AT_UNROLL for (int e = 0; e < 4; ++e) {
      const float got = __shfl_xor_sync(0xffffffffu, high ? half[0][e] : half[1][e], 2);
      v[e] = high ? got : half[0][e], v[4 + e] = high ? half[1][e] : got;
    }
  }

  AT_DEVICE static void run(const Params& params, char* shared) {
    int tile = blockIdx.x / params.blocks;
    const int first_channel = (blockIdx.x - tile * params.blocks) * kChannels;
    const int above = tile / params.tiles_q, column = (tile - above * params.tiles_q) * kColumns;
    const int image = above / params.tiles_p, row = (above - image * params.tiles_p) * kRows;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = warp % kBlocks;
    const int channel = first_channel + block * kVector, first_site = warp / kBlocks * 16 * kTiles;
    Weights weights;
    read_weights(params, channel, weights);
    griddepcontrol_wait();
    const uint32_t inputs = (uint32_t)__cvta_generic_to_shared(shared);
    load(params, image, row * kStride - params.a.pad_h, column * kStride - params.a.pad_w, first_channel, inputs);
    launch_dependents();
    if (channel >= params.a.c) return;
    float accum[kTiles][4] = {};
    multiply(inputs + block * kVector / kInner * kInner * 2, first_site, weights, accum);
    AT_UNROLL for (int j = 0; j < kTiles; j += 2) {
      float v[kVector];
      transpose(accum[j], accum[j + 1], v);
      const int site = first_site + 16 * j + lane % 4 / 2 * 16 + lane % 2 * 8 + lane / 4;
      const int p = row + site / kColumns, q = column + site % kColumns;
      if (p >= params.a.p || q >= params.a.q) continue;
      const int64_t offset = (((int64_t)image * params.a.p + p) * params.a.q + q) * params.a.c + channel;
      Steps::apply(v, params.p.p, params.a, channel, offset);
      store(v, (Element*)params.p.p[2] + offset);
    }
  }
};

}  // namespace at
