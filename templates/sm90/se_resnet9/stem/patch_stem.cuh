// A network's first layer in the kernel of the block behind it: a convolution of 4 x 4 patches that do not overlap, on
// the image as torch has it. As a matrix product its rows are patches, and every channel of the image is a step along
// K.
//
// wgmma takes these rows from registers. Of a step a thread holds four elements of each of its rows, and the layout of
// the weights (`wgmma_patch`, autotune/ir/weight_layout.py) makes them a line of a patch: a thread reads each of its
// pixels once, straight from the image, and nothing passes through shared memory. Its sums are then of the same pixels
// and channels as those of the block's own convolutions, so what the block adds as its identity stays in this thread.
#pragma once
#include "cuda/stem_image.cuh"
#include "sm90/ptx/wgmma.cuh"

namespace at {

// kImage: channels of the image. kBlocks: wgmma's blocks of rows for each warpgroup.
template <typename Element, int kImage, int kChannels, int kBlocks>
struct BlockStem {
  static constexpr int kSide = 4;                                           // of a patch
  static constexpr int kStepBytes = kChannels * 16 * (int)sizeof(Element);  // of the weights of one step

  int image[kBlocks], place[kBlocks];  // of the tile; in it, of this thread's line of the patch in the upper row
  uint32_t rows[kBlocks][kImage][4];   // as wgmma takes them

  template <typename WarpCoord>
  AT_DEVICE BlockStem(const StemImage& x, const WarpCoord& coord) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      image[m] = coord.image[m];
      place[m] = (kSide * coord.row[m] + (int)threadIdx.x % 4) * x.of_row + kSide * coord.column[m] * x.of_pixel;
    }
  }

  // Begins to read the lines of a tile whose first image is `first`.
  AT_DEVICE void read(const StemImage& x, const void* from, int first) {
    if (x.channels_last()) read<true>(x, (const Element*)from, first);
    else read<false>(x, (const Element*)from, first);
  }

  // Of all rows and output channels, with weights in shared memory from `weights` on.
  template <typename Config, typename Sums>
  AT_DEVICE void multiply(Sums& sums, uint32_t weights) const {
    const uint32_t b = ptx::descriptor_lo(weights), hi = ptx::descriptor_hi<32>(8 * 32);
    ptx::warpgroup_fence_operand(sums);
    ptx::warpgroup_arrive();
#pragma unroll
    for (int c = 0; c < kImage; ++c)
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        Config::wgmma(sums[m], rows[m][c], ptx::SmemDescriptor{b + c * (kStepBytes / 16), hi}, c > 0);
    ptx::warpgroup_commit_batch();
    ptx::warpgroup_wait<0>();
    ptx::warpgroup_fence_operand(sums);
  }

 private:
  template <bool kChannelsLast>
  AT_DEVICE void read(const StemImage& x, const Element* from, int first) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const int64_t number = min(first + image[m], x.count - 1);  // the last tile may lack images
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Element* pixels = from + number * x.of_image + place[m] + half * kSide * x.of_row;
        uint2 line[kImage];
        read_line<kChannelsLast>(line, x, pixels);
#pragma unroll
        for (int c = 0; c < kImage; ++c) rows[m][c][half] = line[c].x, rows[m][c][2 + half] = line[c].y;
      }
    }
  }
};

// A block without a stem.
template <typename Element, int kChannels, int kBlocks>
struct BlockStem<Element, 0, kChannels, kBlocks> {
  static constexpr int kStepBytes = 0;
  template <typename WarpCoord>
  AT_DEVICE BlockStem(const StemImage&, const WarpCoord&) {}
};

}  // namespace at
