// A thread's part of wgmma's accumulators, m64nN, with weights in layout "wgmma" (autotune/ir/weight_layout.py).
//
// The layout permutes the weights' rows so that a thread's accumulators are whole vectors of eight neighbouring
// channels. For a warp w of the warpgroup and a lane l, vector (block, half, columns) holds row 64 block + 16 w + 8
// half + l / 4 and channels 32 columns + 8 (l % 4) up to 7 more.
#pragma once

namespace at {

constexpr int kFragmentVector = 8;  // channels of a vector

// The first channel of this thread's vectors among every 32, and its first row among a warp's 16.
AT_DEVICE int fragment_channel() { return 8 * ((int)threadIdx.x % 4); }

template <int kBlocks, int N>
AT_DEVICE void load_fragment(float (&v)[8], const float (&accumulators)[kBlocks][N], int block, int half, int columns) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    v[2 * j] = accumulators[block][16 * columns + 4 * j + 2 * half];
    v[2 * j + 1] = accumulators[block][16 * columns + 4 * j + 2 * half + 1];
  }
}

template <int kBlocks, int N>
AT_DEVICE void store_fragment(const float (&v)[8], float (&accumulators)[kBlocks][N], int block, int half,
                              int columns) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    accumulators[block][16 * columns + 4 * j + 2 * half] = v[2 * j];
    accumulators[block][16 * columns + 4 * j + 2 * half + 1] = v[2 * j + 1];
  }
}

}  // namespace at
