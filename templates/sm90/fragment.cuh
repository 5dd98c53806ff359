// A thread's part of wgmma's accumulators, m64nN, with weights in layout "wgmma" (autotune/ir/weight_layout.py).
//
// The layout permutes the weights' rows so that a thread's accumulators are whole vectors of eight neighbouring
// channels. Vector `at` of a thread is row 64 block + 16 warp + 8 half + fragment_row(lane) of its warpgroup's tile,
// and channels 32 columns + fragment_channel(lane) up to 7 more.
//
// Loops over vectors are unrolled, since accumulators have no address. They stay plain loops with fragment_coord(): if
// a function calls a lambda for each vector, or reads the lane itself, the compiler orders loads differently.
#pragma once

namespace at {

AT_DEVICE int fragment_row(int lane) { return lane / 4; }
AT_DEVICE int fragment_channel(int lane) { return 8 * (lane % 4); }

struct FragmentCoord {
  int block, half, columns;
  // The distance from the thread's first vector.
  AT_DEVICE constexpr int row() const { return 64 * block + 8 * half; }
  AT_DEVICE constexpr int channel() const { return 32 * columns; }
};

// Returns vector i of a thread that has kBlocks blocks of 64 rows: first the rows of 32 channels, then of the next 32.
template <int kBlocks>
AT_DEVICE constexpr FragmentCoord fragment_coord(int i) {
  return {i / 2 % kBlocks, i % 2, i / (2 * kBlocks)};
}

// The accumulators are float or int.
template <typename ElementAccum, int kBlocks, int N>
AT_DEVICE void load_fragment(float (&v)[8], const ElementAccum (&accumulators)[kBlocks][N], int block, int half,
                             int columns) {
  AT_UNROLL for (int j = 0; j < 4; ++j) {
    v[2 * j] = accumulators[block][16 * columns + 4 * j + 2 * half];
    v[2 * j + 1] = accumulators[block][16 * columns + 4 * j + 2 * half + 1];
  }
}

template <typename ElementAccum, int kBlocks, int N>
AT_DEVICE void load_fragment(float (&v)[8], const ElementAccum (&accumulators)[kBlocks][N], FragmentCoord at) {
  load_fragment(v, accumulators, at.block, at.half, at.columns);
}

template <int kBlocks, int N>
AT_DEVICE void store_fragment(const float (&v)[8], float (&accumulators)[kBlocks][N], int block, int half,
                              int columns) {
  AT_UNROLL for (int j = 0; j < 4; ++j) {
    accumulators[block][16 * columns + 4 * j + 2 * half] = v[2 * j];
    accumulators[block][16 * columns + 4 * j + 2 * half + 1] = v[2 * j + 1];
  }
}

template <int kBlocks, int N>
AT_DEVICE void store_fragment(const float (&v)[8], float (&accumulators)[kBlocks][N], FragmentCoord at) {
  store_fragment(v, accumulators, at.block, at.half, at.columns);
}

}  // namespace at
