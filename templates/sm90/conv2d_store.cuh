// The end of a tile of the Hopper convolution: sums in registers, through the epilogue's steps, to the output.
#pragma once
#include "sm90/conv2d_plan.cuh"

namespace at {

template <typename Config>
struct Conv2dStore : Conv2dPlan<Config> {
 protected:
  using Plan = Conv2dPlan<Config>;
  using typename Plan::Element, typename Plan::Layout, typename Plan::Member, typename Plan::Params;
  using typename Plan::Sums, typename Plan::Tile;
  using Plan::kBlocks, Plan::kGroups, Plan::kM, Plan::kN, Plan::kPatch, Plan::kSlices, Plan::kStageBytes;
  using Plan::kStageChannels, Plan::kStages, Plan::kUnits, Plan::kVector, Plan::kY;

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

  // The image and the square of 8 x 8 pixels that are a tile's block of 64 rows.
  AT_DEVICE static void square(const Params& x, const Tile& tile, int block, int& n, int& h, int& w) {
    n = x.out_area.split(tile.m, h) * x.images;
    h = x.out_width.split(h, w);
    if (kM == 64) return;
    n += block / (x.squares_w * x.squares_h);
    h = h * x.squares_h + block / x.squares_w % x.squares_h, w = w * x.squares_w + block % x.squares_w;
  }

  // The place of an output pixel among all, or -1: row `row` of 64 in block `block` of a tile.
  AT_DEVICE static int output_pixel(const Params& x, const Tile& tile, int block, int row) {
    if (!kPatch) {
      const int pixel = tile.m * kM + 64 * block + row;
      return pixel < x.rows ? pixel : -1;
    }
    int n, h, w;
    square(x, tile, block, n, h, w);
    h = 8 * h + row / 8, w = 8 * w + row % 8;
    return n < x.n && h < x.out_h && w < x.out_w ? (n * x.out_h + h) * x.out_w + w : -1;
  }

  // Brings the epilogue's vectors near while the first loads are on their way.
  AT_DEVICE static void touch_parameters(const Params& x, const Tile& tile) {
    const int channel = tile.n * kN + threadIdx.x % 32 * 8;  // a line of 32 floats by every fourth lane
    if (threadIdx.x % 4 == 0 && channel < min(x.k, tile.n * kN + kN)) Config::Steps::touch(x.p.p, channel);
  }

  AT_DEVICE static void stage_tile(const Params& x, const Layout& at, const Tile& tile, int first_block, Sums& sums) {
    constexpr int kChunks = kN / kStageChannels, kColumns = kStageChannels / 32;
    const int lane = threadIdx.x % 32, warp = hopper::uniform(threadIdx.x / 32);
    int pixels[kBlocks][2];
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i)
      pixels[i / 2][i % 2] =
          Config::kAtPixels ? output_pixel(x, tile, first_block + i / 2, 16 * (warp % 4) + 8 * (i % 2) + lane / 4) : 0;
    auto channel_of = [&](int batch, int i) {
      return tile.n * kN + 32 * (batch / kBlocks * kColumns + i) + 8 * (lane % 4);
    };
    typename Config::Steps::Fetched fetched[2][2 * kColumns];
    auto fetch = [&](int batch) {
#pragma unroll
      for (int i = 0; i < 2 * kColumns; ++i) {
        const int pixel = pixels[batch % kBlocks][i % 2], channel = channel_of(batch, i / 2);
        if (pixel >= 0 && channel < x.k)
          Config::Steps::fetch(fetched[batch % 2][i], x.p.p, (int64_t)pixel * x.k + channel);
      }
    };
    fetch(0);
#pragma unroll
    for (int batch = 0; batch < kChunks * kBlocks; ++batch) {
      const int chunk = batch / kBlocks, m = batch % kBlocks;
      const uint32_t buffer = at.staging + (kStages * warp + batch % kStages) * kStageBytes;
      if (batch + 1 < kChunks * kBlocks) fetch(batch + 1);
      // Until the buffer's last store has read it: kStages ago, or one of the tile before.
      if (batch == 0 && kChunks * kBlocks % kStages != 0) hopper::wait_for_stores<0>();
      else hopper::wait_for_stores<kStages - 1>();
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2 * kColumns; ++i) {
        const int half = i % 2, columns = chunk * kColumns + i / 2, row = 8 * half + lane / 4;
        const int pixel = pixels[m][half], channel = channel_of(batch, i / 2);
        float v[kVector];
        hopper::take(v, sums, m, half, columns);
        if (pixel >= 0 && channel < x.k)
          Config::Steps::apply(v, x.p.p, x.scalars, channel, (int64_t)pixel * x.k + channel, fetched[batch % 2][i]);
        const int place = (4 * (i / 2) + lane % 4) ^ (kStageChannels == 64 ? row % 8 : row / 2 % 4);
        hopper::write(buffer + row * kStageChannels * (int)sizeof(Element) + 16 * place, rounded<Element>(v).words[0]);
      }
      hopper::publish_shared();
      __syncwarp();
      if (lane == 0) {
        const int channel = tile.n * kN + chunk * kStageChannels;
        if (kPatch) {
          int n, h, w;
          square(x, tile, first_block + m, n, h, w);
          hopper::store_4d(x.output_map, buffer, channel, 8 * w, 8 * h + 2 * (warp % 4), n);
        } else {
          hopper::store_2d(x.output_map, buffer, channel, tile.m * kM + 64 * (first_block + m) + 16 * (warp % 4));
        }
      }
      hopper::commit_stores();
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
