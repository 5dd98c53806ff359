// The image that a network's first layer reads, a convolution of 4 x 4 patches that do not overlap, by mma.sync or
// wgmma with the rows in registers: every channel of the image is a step along K, of which a thread holds a line of
// four pixels of each of its rows' patches. (So are the weights ordered: layout "wgmma_patch",
// autotune/ir/weight_layout.py.)
#pragma once
#include "cuda/kernel.cuh"

namespace at {

constexpr int kSide = 4;  // of a patch

// The image in memory: how many there are, and elements from one to the next.
struct StemImage {
  int count, of_image, of_channel, of_row, of_pixel;
  AT_DEVICE bool channels_last() const { return of_pixel != 1; }
};

// An image of one channel is the same in both orders.
AT_DEVICE StemImage stem_image(int n, int h, int w, int c, bool channels_last) {
  if (channels_last) return {n, h * w * c, 1, w * c, c};
  return {n, h * w * c, h * w, w, 1};
}

// Four pixels from `at` on. line[c]: those of channel c.
template <bool kChannelsLast, int kImage, typename Element>
AT_DEVICE void read_line(uint2 (&line)[kImage], const StemImage& x, const Element* at) {
  Pack<Element, 4 * kImage> pixels;  // in the order of memory
  if constexpr (kChannelsLast) pixels.read(at);
#pragma unroll
  for (int c = 0; c < kImage; ++c) {
    Pack<Element, 4> four;
    if constexpr (kChannelsLast) {
#pragma unroll
      for (int i = 0; i < 4; ++i) four.elements[i] = pixels.elements[i * kImage + c];
    } else {
      four.read(at + c * x.of_channel);
    }
    line[c] = four.words[0];
  }
}

}  // namespace at
