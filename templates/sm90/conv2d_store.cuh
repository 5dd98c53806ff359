// The end of a tile of the Hopper convolution: sums in registers, those of a split tile added up, through the epilogue's
// steps, straight to the output.
#pragma once
#include "sm90/conv2d_stage.cuh"

namespace at {

template <typename Config>
struct Conv2dStore : Conv2dStage<Config> {
 protected:
  using Plan = Conv2dPlan<Config>;
  using typename Plan::Element, typename Plan::Layout, typename Plan::Member, typename Plan::Params;
  using typename Plan::Sums, typename Plan::Tile;
  using Conv2dStage<Config>::output_pixel;
  using Plan::kBlocks, Plan::kGroups, Plan::kN, Plan::kSlices, Plan::kUnits, Plan::kVector, Plan::kY;

  // A unit is eight neighbouring channels of one pixel: which of a thread's accumulators hold it.
  AT_DEVICE static void unit(int i, int& block, int& half, int& columns) {
    columns = i / (2 * kBlocks), half = i % 2, block = i / 2 % kBlocks;
  }

  // Each slice keeps a part of the tile's units, gets the others' sums of it and gives away the rest.
  AT_DEVICE static void gather_slices(const Layout& at, const Member& me, Sums& sums) {
    constexpr int kOwn = kUnits / kSlices, kWide = 128 * kGroups;
    hopper::sync_cluster();  // all loads have been used: the rings are free
    if (threadIdx.x == 0) hopper::expect_bytes(at.turn, (kSlices - 1) * kOwn * 32 * kWide);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      int m, half, columns;
      unit(i, m, half, columns);
      const int owner = i / kOwn;
      if (owner == me.slice) continue;
      const int to = me.rank(me.m, me.n, owner);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float* d = &sums[m][16 * columns + 8 * j + 2 * half];
        const uint32_t place = ((me.slice * kOwn + i % kOwn) * 2 + j) * kWide + threadIdx.x;
        hopper::send(at.fills + place * 16, at.turn, to, make_float4(d[0], d[1], d[4], d[5]));
      }
    }
    hopper::wait(at.turn, 0);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      int m, half, columns;
      unit(i, m, half, columns);
      if (i / kOwn != me.slice) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float* d = &sums[m][16 * columns + 8 * j + 2 * half];
        const float4 own = make_float4(d[0], d[1], d[4], d[5]);
        float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice) {
          const uint32_t place = ((slice * kOwn + i % kOwn) * 2 + j) * kWide + threadIdx.x;
          const float4 part = slice == me.slice ? own : hopper::load_own(at.fills + place * 16);
          total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
        }
        d[0] = total.x, d[1] = total.y, d[4] = total.z, d[5] = total.w;
      }
    }
  }

  // Units of eight channels whose tensors are read at once, while the units before are worked on.
  static constexpr int kGroup = kUnits < 4 ? kUnits : 4, kUnitGroups = (kUnits + kGroup - 1) / kGroup;

  // Calls work(place in the group, block, half, columns, channel, offset) for this thread's units of a group.
  template <typename Work>
  AT_DEVICE static void each_unit(const Params& x, const Member& me, const Tile& tile, const int (&pixels)[kBlocks][2],
                                  int group, const Work& work) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const int i = group * kGroup + j;
      if (i >= kUnits) continue;
      int m, half, columns;
      unit(i, m, half, columns);
      const int channel = tile.n * kN + 32 * columns + threadIdx.x % 4 * 8;
      if (pixels[m][half] < 0 || channel >= x.k || i / (kUnits / kSlices) != me.slice) continue;
      work(j, m, half, columns, channel, (int64_t)pixels[m][half] * x.k + channel);
    }
  }

  AT_DEVICE static void find_pixels(const Params& x, const Tile& tile, int first_block, int (&pixels)[kBlocks][2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i)
      pixels[i / 2][i % 2] = output_pixel(x, tile, first_block + i / 2, 16 * warp + 8 * (i % 2) + lane / 4);
  }

  AT_DEVICE static void store_tile(const Params& x, const Member& me, const Tile& tile, int first_block, Sums& sums) {
    int pixels[kBlocks][2];
    find_pixels(x, tile, first_block, pixels);
    typename Config::Steps::Fetched fetched[2][kGroup];
    auto fetch = [&](int group) {
      each_unit(x, me, tile, pixels, group, [&](int j, int, int, int, int, int64_t offset) {
        Config::Steps::fetch(fetched[group % 2][j], x.p.p, offset);
      });
    };
    fetch(0);
#pragma unroll
    for (int group = 0; group < kUnitGroups; ++group) {
      if (group + 1 < kUnitGroups) fetch(group + 1);
      each_unit(x, me, tile, pixels, group, [&](int j, int m, int half, int columns, int channel, int64_t offset) {
        float v[kVector];
        hopper::take(v, sums, m, half, columns);
        Config::Steps::apply(v, x.p.p, x.scalars, channel, offset, fetched[group % 2][j]);
        store(v, (Element*)x.p.p[kY] + offset);
      });
    }
  }
};

}  // namespace at
