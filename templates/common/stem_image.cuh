// Loads the image for a network's first layer: a convolution of non-overlapping 4 x 4 patches with mma.sync, or with
// wgmma and operand A in registers. Each channel of the image is one k16 step. In it a thread holds one line of four
// pixels of each patch that is one of its rows. The weights have layout "wgmma_patch" (autotune/ir/weight_layout.py).
#pragma once
#include "cuda/kernel.cuh"

namespace at {

constexpr int kSide = 4;  // of a patch, in pixels

// The number of images and their strides in elements.
struct StemImage {
  int count, of_image, of_channel, of_row, of_pixel;
  AT_DEVICE bool channels_last() const { return of_pixel != 1; }
};

// With c = 1 both layouts are the same, and channels_last() is false.
AT_DEVICE StemImage stem_image(int n, int h, int w, int c, bool channels_last) {
  if (channels_last) return {n, h * w * c, 1, w * c, c};
  return {n, h * w * c, h * w, w, 1};
}

// Loads four pixels from `at`. line[c]: the pixels in channel c.
template <bool kChannelsLast, int kImage, typename Element>
AT_DEVICE void read_line(uint2 (&line)[kImage], const StemImage& x, const Element* at) {
  Pack<Element, 4 * kImage> pixels;  // in the order of memory
  if constexpr (kChannelsLast) pixels.read(at);
  AT_UNROLL for (int c = 0; c < kImage; ++c) {
    Pack<Element, 4> four;
    if constexpr (kChannelsLast) {
      AT_UNROLL for (int i = 0; i < 4; ++i)
        four.elements[i] = pixels.elements[i * kImage + c];
    } else {
      four.read(at + c * x.of_channel);
    }
    line[c] = four.words[0];
  }
}

}  // namespace at
