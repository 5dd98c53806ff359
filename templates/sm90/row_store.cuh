// The end of kernels whose tiles are pixels in the order of memory, 64 for each warpgroup: a thread's accumulators get
// the steps and are stored from registers, as vectors of eight channels.
#pragma once
#include "sm90/fragment.cuh"

namespace at {

// The thread's two pixels of its warpgroup's 64.
struct ThreadRows {
  int row[2];
  bool in_bounds[2];
  AT_DEVICE ThreadRows(int first, int rows) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    AT_UNROLL for (int half = 0; half < 2; ++half) {
      row[half] = first + 16 * warp + 8 * half + fragment_row(lane);
      in_bounds[half] = row[half] < rows;
    }
  }
};

// A vector of eight channels: whether it exists, a channel that exists, and its offset in a tensor. first: the channel
// of the tile's first column.
struct VectorPlace {
  bool in_bounds;
  int channel;
  int64_t offset;
  AT_DEVICE VectorPlace(const ThreadRows& rows, FragmentCoord at, int first, int channels) {
    const int own = first + at.channel() + fragment_channel(threadIdx.x % 32);
    in_bounds = rows.in_bounds[at.half] && own < channels;
    channel = min(own, channels - 8);
    offset = (int64_t)rows.row[at.half] * channels + channel;
  }
};

// Applies the steps and stores. The first vectors' tensors are fetched before `wait` waits for the accumulators.
template <typename Steps, typename Element, typename ElementAccum, int kColumns, typename Wait>
AT_DEVICE void store_rows(void* const* p, const float* scalars, int y, const ThreadRows& rows, int first, int channels,
                          ElementAccum (&accum)[1][kColumns], const Wait& wait) {
  constexpr int kVectors = kColumns / 8;               // of the thread
  constexpr int kGroup = kVectors < 4 ? kVectors : 4;  // vectors whose tensors are fetched together
  constexpr int kGroups = (kVectors + kGroup - 1) / kGroup;
  typename Steps::Fetched fetched[2][kGroup];
  const auto fetch = [&](int group) {
    AT_UNROLL for (int j = 0; j < kGroup; ++j) {
      if (group * kGroup + j >= kVectors) continue;
      const VectorPlace place(rows, fragment_coord<1>(group * kGroup + j), first, channels);
      if (place.in_bounds) Steps::fetch(fetched[group % 2][j], p, place.offset);
    }
  };
  if constexpr (Steps::kFetches) fetch(0);
  wait();
  AT_UNROLL for (int group = 0; group < kGroups; ++group) {
    if constexpr (Steps::kFetches)
      if (group + 1 < kGroups) fetch(group + 1);
    AT_UNROLL for (int j = 0; j < kGroup; ++j) {
      if (group * kGroup + j >= kVectors) continue;
      const FragmentCoord at = fragment_coord<1>(group * kGroup + j);
      const VectorPlace place(rows, at, first, channels);
      float v[8];
      load_fragment(v, accum, at);
      if (!Steps::kStores || place.in_bounds)
        Steps::apply(v, p, scalars, place.channel, place.offset, fetched[group % 2][j]);
      if (place.in_bounds) store(v, (Element*)p[y] + place.offset);
    }
  }
}

}  // namespace at
