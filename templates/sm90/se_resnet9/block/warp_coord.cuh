// What a thread has of a tile in block.cuh, as wgmma deals out its sums where the weights' layout is `wgmma`.
//
// Of each of its warpgroup's squares of 8 x 8 pixels: rows 2 warp and 2 warp + 1, column lane / 4; there the channels
// 8 (lane % 4) on of every 32.
#pragma once
#include "sm90/ptx/registers.cuh"

namespace at {

template <int kBlocks, int kChannels, int kRowBytes, int kSquares>
struct SeBlockWarpCoord {
  static constexpr int kColumns = kChannels / 32, kUnits = kBlocks * 2 * kColumns;  // of eight channels

  int image[kBlocks];                 // of the tile
  uint32_t corner[kBlocks];           // in the patch, of the square's first tap: in units of 16 bytes
  int row[kBlocks], column[kBlocks];  // in the image, of the pixel in the upper row
  int place[kBlocks];                 // the same in the patch
  int pixel[kBlocks];                 // the same among the tile's pixels
  int warp, slab, channel;            // slab: the first block's rows among the tile's sixteens

  template <typename Params>
  AT_DEVICE explicit SeBlockWarpCoord(const Params& x) {
    const int lane = threadIdx.x % 32;
    warp = ptx::warp_uniform(threadIdx.x / 32);
    const int first = warp / 4 * kBlocks;
    slab = 4 * first + warp % 4, channel = 8 * (lane % 4);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      image[m] = (first + m) / kSquares;
      const int square = (first + m) % kSquares, h = 8 * (square / x.squares_w), w = 8 * (square % x.squares_w);
      const int begin = image[m] * x.patch_area + h * x.patch_w + w;
      corner[m] = ptx::warp_uniform(begin * kRowBytes / 16);
      row[m] = h + 2 * (warp % 4), column[m] = w + lane / 4;
      place[m] = begin + (2 * (warp % 4) + 1) * x.patch_w + lane / 4 + 1;
      pixel[m] = image[m] * 64 * kSquares + row[m] * x.width + column[m];
    }
  }

  // Calls work(number, block, half, channel) for this thread's units of eight channels.
  template <typename Work>
  AT_DEVICE void each_unit(const Work& work) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int columns = i % kColumns, half = i / kColumns % 2, m = i / kColumns / 2;
      work(i, m, half, channel + 32 * columns);
    }
  }
};

}  // namespace at
