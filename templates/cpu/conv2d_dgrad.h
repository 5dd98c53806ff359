// Dgrad as a direct convolution: every pixel of dx is a sum over taps and channels of dy.
//
// With a stride, only some taps contribute to a pixel of dx: those that match the pixel's coordinates modulo the
// stride. So rows and columns are sorted by that residue. The pixels of a tile then mostly need the same taps, and the
// other taps are skipped.
//
// Weights have the layout (groups, blocks of c, r, s, k / groups, BlockK).
#pragma once
#include "cpu/conv2d.h"

namespace at {

// Returns the i-th coordinate of an axis when coordinates are sorted by their residue modulo `stride`.
static inline int sorted_place(int i, int size, int stride) {
  const int each = size / stride, longer = size % stride;  // the first `longer` residues have each + 1 coordinates
  const int first = longer * (each + 1);
  if (i < first) return i / (each + 1) + i % (each + 1) * stride;
  return longer + (i - first) / each + (i - first) % each * stride;
}

// The pixels of one tile of dx; images are innermost.
template <int Count>
struct GradientPixels {
  static constexpr int COUNT = Count;
  static int inputs(const at_conv2d& a) { return a.k; }
  static int outputs(const at_conv2d& a) { return a.c; }
  static int pixels(const at_conv2d& a) { return a.n * a.h * a.w; }

  int row = -1;  // index of this tile
  int exist;     // pixels of Count that exist; the others read zeros
  int h[Count], w[Count];
  int64_t input[Count], output[Count];

  // Moves to a tile.
  void seek(const at_conv2d& a, int to) {
    if (to == row) return;
    row = to;
    const int first = to * Count, left = pixels(a) - first;
    exist = left < Count ? left : Count;
    for (int i = 0; i < Count; ++i) {
      const int image = (first + i) % a.n, place = (first + i) / a.n;
      const int down = sorted_place(i < exist ? place / a.w : 0, a.h, a.stride_h);
      const int right = sorted_place(place % a.w, a.w, a.stride_w);
      h[i] = i < exist ? down + a.pad_h : INT32_MIN / 2;
      w[i] = right + a.pad_w;
      input[i] = (int64_t)image * a.p * a.q * a.k;
      output[i] = (((int64_t)image * a.h + down) * a.w + right) * a.c;
    }
  }

  // Finds the channels of dy that contribute to each pixel under a tap. Returns false if the tap contributes to no
  // pixel.
  template <typename Element>
  bool tap(const at_conv2d& a, int r, int s, const Element* dy, const Element* (&under)[Count]) const {
    bool any = false;
    for (int i = 0; i < Count; ++i) {
      const int down = h[i] - r * a.dilation_h, right = w[i] - s * a.dilation_w;
      const int p = down / a.stride_h, q = right / a.stride_w;
      const bool meets = down >= 0 && right >= 0 && p * a.stride_h == down && q * a.stride_w == right;
      const bool inside = meets && p < a.p && q < a.q;
      under[i] = inside ? dy + input[i] + ((int64_t)p * a.q + q) * a.k : (const Element*)zeros;
      any |= inside;
    }
    return any;
  }
};

}  // namespace at
