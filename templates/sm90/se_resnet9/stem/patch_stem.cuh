// The stem of SE-ResNet9 in the kernel of the block behind it: a convolution of 4 x 4 patches that do not overlap, on
// the image as torch has it (NCHW or NHWC). As a matrix product, patches are rows and every image channel is a step of
// 16 along K.
//
// wgmma takes the patches from registers. In a step a thread holds four elements of each of its rows, and the layout of
// the weights (`wgmma_patch`, autotune/ir/weight_layout.py) makes them a line of a patch. So a thread reads each of its
// pixels once, straight from the image, and nothing passes through shared memory. Its sums belong to the same pixels
// and channels as those of the block's own convolutions, so the block's identity stays in this thread.
#pragma once
#include "common/stem_image.cuh"
#include "common/ptx/wgmma.cuh"

namespace at {

// kImage: channels of the image. kBlocks: blocks of 64 rows of each warpgroup.
template <typename Element, int kImage, int kChannels, int kBlocks>
struct BlockStem {
  static constexpr int kSide = 4;                                           // pixels of a patch's side
  static constexpr int kStepBytes = kChannels * 16 * (int)sizeof(Element);  // bytes of one step's weights

  int image[kBlocks], place[kBlocks];  // image in the tile; element of this thread's patch line
  uint32_t rows[kBlocks][kImage][4];   // wgmma's A operand

  template <typename WarpCoord>
  AT_DEVICE BlockStem(const StemImage& x, const WarpCoord& coord) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      image[m] = coord.image[m];
      place[m] = (kSide * coord.row[m] + (int)threadIdx.x % 4) * x.of_row + kSide * coord.column[m] * x.of_pixel;
    }
  }

  // Starts to read the patch lines of a tile whose first image is `first`.
  AT_DEVICE void read(const StemImage& x, const void* from, int first) {
    if (x.channels_last()) read<true>(x, (const Element*)from, first);
    else read<false>(x, (const Element*)from, first);
  }

  // Multiplies all rows by the stem's weights, which lie in shared memory from `weights` on.
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
      const int64_t number = min(first + image[m], x.count - 1);  // the last tile may have fewer images
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
