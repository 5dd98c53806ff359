// The end of kernels as in row_store.cuh, through shared memory: TMA writes the output, piece by piece. A piece is 16
// pixels of a warp by up to 128 bytes of channels.
#pragma once
#include "sm90/row_store.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"
#include "common/ptx/tma.cuh"

namespace at {

// The pieces of a tile of kN channels, and a warp's two buffers, which take turns.
template <typename Element, int kN>
struct RowStage {
  static constexpr int kWide = 128 / (int)sizeof(Element);
  static constexpr int kChannels = kN % kWide == 0 ? kWide : kN % 64 == 0 ? 64 : 32, kPieces = kN / kChannels;
  static constexpr int kRowBytes = kChannels * (int)sizeof(Element), kBytes = 16 * kRowBytes, kWarpBytes = 2 * kBytes;
  static_assert(kRowBytes <= 128, "no such swizzle");

  uint32_t buffers;
  int turn = 0;

  // The offset of a thread's vector in a piece, with TMA's swizzle of units of 16 bytes. column: of 32 channels.
  AT_DEVICE static int place(int half, int column) {
    const int lane = threadIdx.x % 32, row = 8 * half + fragment_row(lane);
    const int swizzle = kRowBytes == 128 ? row % 8 : kRowBytes == 64 ? row / 2 % 4 : row / 4 % 2;
    const int byte = (32 * column + fragment_channel(lane)) * (int)sizeof(Element);
    return row * kRowBytes + 16 * (byte / 16 ^ swizzle) + byte % 16;
  }

  // Asks for the map through which pieces leave for a tensor of rows of channels.
  static AT_DEVICE void describe(at_tensor_map& map, int offset, int pointer, int element, uint64_t channels,
                                 uint64_t rows) {
    map = {offset, pointer, element, ptx::swizzle_mode(kRowBytes)};
    ptx::describe_tensor_map<Element>(map, {channels, rows}, {kChannels, 16}, {1, 1});
  }
};

// Applies the steps and stores. The first piece's tensors are fetched before `wait` waits for the accumulators.
// warp_row: the first of the warp's 16 pixels; those that do not exist are clipped.
template <typename Steps, typename Element, int kN, typename ElementAccum, typename Wait>
AT_DEVICE void stage_rows(void* const* p, const float* scalars, const void* map, RowStage<Element, kN>& stage,
                          const ThreadRows& rows, int warp_row, int first, int channels,
                          ElementAccum (&accum)[1][kN / 2], const Wait& wait) {
  using Stage = RowStage<Element, kN>;
  constexpr int kVectors = Stage::kChannels / 16;  // of the thread in a piece
  typename Steps::Fetched fetched[2][kVectors];
  const auto fetch = [&](int piece) {
    AT_UNROLL for (int j = 0; j < kVectors; ++j) {
      const VectorPlace place(rows, fragment_coord<1>(piece * kVectors + j), first, channels);
      if (place.in_bounds) Steps::fetch(fetched[piece % 2][j], p, place.offset);
    }
  };
  if constexpr (Steps::kFetches) fetch(0);
  wait();
  AT_UNROLL for (int piece = 0; piece < Stage::kPieces; ++piece) {
    if constexpr (Steps::kFetches)
      if (piece + 1 < Stage::kPieces) fetch(piece + 1);
    const uint32_t buffer = stage.buffers + stage.turn * Stage::kBytes;
    stage.turn ^= 1;
    ptx::tma_store_wait<1>();  // TMA has read what the buffer held
    __syncwarp();
    AT_UNROLL for (int j = 0; j < kVectors; ++j) {
      const FragmentCoord at = fragment_coord<1>(piece * kVectors + j);
      const VectorPlace place(rows, at, first, channels);
      float v[8];
      load_fragment(v, accum, at);
      // Values outside the output are computed too, unless the steps store them, and TMA clips them.
      if (!Steps::kStores || place.in_bounds)
        Steps::apply(v, p, scalars, place.channel, place.offset, fetched[piece % 2][j]);
      ptx::st_shared(buffer + Stage::place(at.half, j / 2), rounded<Element>(v).words[0]);
    }
    ptx::fence_view_async_shared();
    __syncwarp();
    if (ptx::elect_one_sync()) ptx::tma_store_2d(map, buffer, first + piece * Stage::kChannels, warp_row);
    ptx::tma_store_arrive();
  }
}

}  // namespace at
