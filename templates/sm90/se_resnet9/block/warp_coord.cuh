// A thread's part of a tile of se_block.cuh: its accumulators with weights in layout "wgmma" (fragment.cuh).
//
// In each of its warpgroup's squares of 8 x 8 pixels it holds rows 2 warp and 2 warp + 1, column lane / 4, and channels
// 8 (lane % 4) to 8 (lane % 4) + 7 of every 32.
#pragma once
#include "common/ptx/registers.cuh"

namespace at {

template <int kBlocks, int kChannels, int kRowBytes, int kSquares>
struct SeBlockWarpCoord {
  static constexpr int kColumns = kChannels / 32,
                       kUnits = kBlocks * 2 * kColumns;  // vectors of eight channels of a thread

  int image[kBlocks];                 // of the tile
  uint32_t corner[kBlocks];           // of the square's first tap in the patch, in units of 16 bytes
  int row[kBlocks], column[kBlocks];  // of the upper row's pixel in the image
  int place[kBlocks];                 // of that pixel in the patch
  int pixel[kBlocks];                 // of that pixel in the tile
  int warp, slab, channel;            // slab: index of the first block's 16 rows in the tile

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

  // Calls work(number, block, half, channel) for this thread's vectors of eight channels.
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
