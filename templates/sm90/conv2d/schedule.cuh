// The schedules of the convolution: which warpgroup multiplies which tile, and when.
//
// Tiles are numbered along a column or a row of the output; block i takes the tiles i, i + grid, ... With cooperative
// warpgroups all share a tile. With ping-pong each has its own: one multiplies while the other runs its epilogue.
#pragma once
#include "sm90/conv2d/plan.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/registers.cuh"

namespace at {

template <typename P>
struct CooperativeSchedule {
  static constexpr int kTileThreads = 128 * P::kGroups;  // that share a tile
  int group = ptx::warp_uniform(threadIdx.x / 128);
  int first_block = group * P::kBlocks;  // of the warpgroup in its tile

  AT_DEVICE static int tile_step() { return P::tile_step(); }  // from one tile of a warpgroup to its next
  AT_DEVICE int first_tile() const { return P::first_tile(); }
  AT_DEVICE int tile_slot() const { return 0; }  // of the kTiles tiles in flight
  AT_DEVICE bool has_turn(int) const { return true; }
  AT_DEVICE void wait_turn(const typename P::Layout&, int) const {}
  AT_DEVICE void end_turn(const typename P::Layout&) const {}
  AT_DEVICE void sync_tile() const { ptx::named_barrier_sync<1, kTileThreads>(); }  // of its threads
};

template <typename P>
struct PingPongSchedule {
  static constexpr int kTileThreads = 128;
  int group = ptx::warp_uniform(threadIdx.x / 128), first_block = 0;

  AT_DEVICE static int tile_step() { return P::tile_step() * P::kGroups; }
  AT_DEVICE int first_tile() const { return P::first_tile() + group * P::tile_step(); }
  AT_DEVICE int tile_slot() const { return group; }

  // turn: the number of the block's tiles before this one.
  AT_DEVICE bool has_turn(int turn) const { return turn % P::kGroups == group; }

  // Parities only tell neighbouring rounds of a ring apart. So a warpgroup enters the rings when the one before has
  // waited for all its k_blocks. This also gives it the tensor cores alone.
  AT_DEVICE void wait_turn(const typename P::Layout& smem, int turn) const {
    ptx::mbarrier_wait(smem.order + ptx::kMbarrierBytes * group, (turn / P::kGroups & 1) ^ (group == 0));
  }

  // Every warp arrives, so that none is left behind at the turn before.
  AT_DEVICE void end_turn(const typename P::Layout& smem) const {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(smem.order + ptx::kMbarrierBytes * ((group + 1) % P::kGroups));
  }

  AT_DEVICE void sync_tile() const {
    if (group == 0) ptx::named_barrier_sync<1, kTileThreads>();
    else ptx::named_barrier_sync<2, kTileThreads>();
  }
};

template <typename P>
using ScheduleOf = Select<P::kPingpong, PingPongSchedule<P>, CooperativeSchedule<P>>;

}  // namespace at
