// The staged epilogue of the convolution: the output goes through shared memory and TMA writes it, piece by piece. A
// piece is 16 pixels by kStageChannels channels of one warp. TMA may load a tensor that the epilogue adds in the same
// pieces.
#pragma once
#include "sm90/conv2d/schedule.cuh"
#include "sm90/fragment.cuh"
#include "sm90/pipeline.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"
#include "common/ptx/tma.cuh"

namespace at {

template <typename Config>
struct Conv2dStage : Conv2dPlan<Config> {
  using P = Conv2dPlan<Config>;
  using Element = typename P::Element;
  using Layout = typename P::Layout;
  using ClusterCoord = typename P::ClusterCoord;
  using Params = typename P::Params;
  using Accum = typename P::Accum;
  using Schedule = ScheduleOf<P>;
  using Tile = typename P::Tile;

  // The image and the square of 8 x 8 pixels that block `block` (64 rows) of a tile covers.
  AT_DEVICE static void square(const Params& params, const Tile& tile, int block, int& n, int& h, int& w) {
    n = params.out_area.divmod(tile.m, h) * params.images;
    h = params.out_width.divmod(h, w);
    if (P::kM == 64) return;
    n += block / (params.squares_w * params.squares_h);
    h = h * params.squares_h + block / params.squares_w % params.squares_h;
    w = w * params.squares_w + block % params.squares_w;
  }

  // The index of an output pixel, or -1 if it lies outside. row: 0 to 63, of block `block` of the tile.
  AT_DEVICE static int output_pixel(const Params& params, const Tile& tile, int block, int row) {
    if (!P::kPatch) {
      const int pixel = tile.first_row(params) + 64 * block + row;
      return pixel < params.rows ? pixel : -1;
    }
    int n, h, w;
    square(params, tile, block, n, h, w);
    h = 8 * h + row / 8;
    w = 8 * w + row % 8;
    return n < params.n && h < params.out_h && w < params.out_w ? (n * params.out_h + h) * params.out_w + w : -1;
  }

  // Calls move() with the output coordinates of a warp's piece. piece / kBlocks counts channels, piece % kBlocks rows.
  // warp: 0 to 3, in its warpgroup.
  template <typename Move>
  AT_DEVICE static void at_piece(const Params& params, const Tile& tile, int first_block, int warp, int piece,
                                 const Move& move) {
    const int block = first_block + piece % P::kBlocks;
    const int channel = tile.n * P::kN + piece / P::kBlocks * P::kStageChannels;
    if (P::kPatch) {
      int n, h, w;
      square(params, tile, block, n, h, w);
      move(channel, 8 * w, 8 * h + 2 * warp, n);
    } else {
      move(channel, tile.first_row(params) + 64 * block + 16 * warp, 0, 0);
    }
  }

  // The piece of the added tensor that a warp loads next, and the buffer that it reads next.
  struct Added {
    int index, piece = 0;  // index of the tile; piece in it
    PipelineState state{0, 0};
  };

  AT_DEVICE static void load_added(const Params& params, const Layout& smem, const ClusterCoord& cta, int first_block,
                                   Added& next, int stage) {
    if (next.index >= params.cluster_tiles) return;
    const int warp = ptx::warp_uniform(threadIdx.x / 32), buffer = warp * params.ahead + stage;
    if (ptx::elect_one_sync()) {
      const uint32_t full = smem.added_full + ptx::kMbarrierBytes * buffer, to = smem.added + buffer * P::kStageBytes;
      ptx::mbarrier_arrive_expect_tx(full, P::kStageBytes);
      at_piece(params, Tile(params, cta, next.index), first_block, warp % 4, next.piece,
               [&](int c, int w, int h, int n) {
                 if (P::kPatch) ptx::tma_load_4d(to, params.added_map, full, c, w, h, n);
                 else ptx::tma_load_2d<false>(to, params.added_map, full, c, w, 0);
               });
    }
    __syncwarp();
    if (++next.piece == P::kPieces) {
      next.piece = 0;
      next.index += Schedule::tile_step();
    }
  }

  AT_DEVICE static void stage_tile(const Params& params, const Layout& smem, const ClusterCoord& cta, const Tile& tile,
                                   int first_block, Accum& accum, Added& added) {
    constexpr int kColumns = P::kStageChannels / 32;
    const int lane = threadIdx.x % 32, warp = ptx::warp_uniform(threadIdx.x / 32);
    int pixels[P::kBlocks][2];
    AT_UNROLL for (int i = 0; i < 2 * P::kBlocks; ++i)
      pixels[i / 2][i % 2] = Config::kAtPixels ? output_pixel(params, tile, first_block + i / 2,
                                                              16 * (warp % 4) + 8 * (i % 2) + fragment_row(lane))
                                               : 0;
    auto channel_of = [&](int batch, int i) {
      return tile.n * P::kN + 32 * (batch / P::kBlocks * kColumns + i) + fragment_channel(lane);
    };
    typename Config::Steps::Fetched fetched[2][2 * kColumns];
    auto fetch = [&](int batch) {
      if (P::kAhead && params.ahead) return;
      AT_UNROLL for (int i = 0; i < 2 * kColumns; ++i) {
        const int pixel = pixels[batch % P::kBlocks][i % 2], channel = channel_of(batch, i / 2);
        if (pixel >= 0 && channel < params.k)
          Config::Steps::fetch(fetched[batch % 2][i], params.p.p, int64_t(pixel) * params.k + channel);
      }
    };
    fetch(0);
    AT_UNROLL for (int batch = 0; batch < P::kPieces; ++batch) {
      const int chunk = batch / P::kBlocks, m = batch % P::kBlocks;
      const uint32_t buffer = smem.staging + (P::kStages * warp + batch % P::kStages) * P::kStageBytes;
      if (batch + 1 < P::kPieces) fetch(batch + 1);
      // Waits until TMA has read the buffer's last contents: kStages pieces ago, or in the tile before.
      if (batch == 0 && P::kPieces % P::kStages != 0) ptx::tma_store_wait<0>();
      else ptx::tma_store_wait<P::kStages - 1>();
      __syncwarp();
      // The offset of eight channels in a piece, with TMA's swizzle of units of 16 bytes.
      auto place_of = [&](int i) {
        const int row = 8 * (i % 2) + lane / 4, bytes = P::kStageRowBytes;
        const int swizzle = bytes == 128 ? row % 8 : bytes == 64 ? row / 2 % 4 : row / 4 % 2;
        if constexpr (sizeof(Element) == 1)
          return row * bytes + 16 * (2 * (i / 2) + lane % 4 / 2 ^ swizzle) + 8 * (lane % 2);
        return row * bytes + 16 * (4 * (i / 2) + lane % 4 ^ swizzle);
      };
      if constexpr (P::kAhead) {
        if (params.ahead) {
          const int stage = added.state.index, buffer = warp * params.ahead + stage;
          ptx::mbarrier_wait(smem.added_full + ptx::kMbarrierBytes * buffer, added.state.phase);
          AT_UNROLL for (int i = 0; i < 2 * kColumns; ++i)
            ptx::ld_shared(fetched[batch % 2][i][0].words[0], smem.added + buffer * P::kStageBytes + place_of(i));
          __syncwarp();
          load_added(params, smem, cta, first_block, added, stage);
          added.state.advance(params.ahead);
        }
      }
      AT_UNROLL for (int i = 0; i < 2 * kColumns; ++i) {
        const FragmentCoord at{m, i % 2, chunk * kColumns + i / 2};
        // Values outside the output are computed too, and TMA clips them: with a branch per vector each would wait for
        // its own operands. Only steps that store by themselves must not run there.
        const int pixel = pixels[m][at.half], channel = min(channel_of(batch, i / 2), params.k - P::kVector);
        float v[P::kVector];
        load_fragment(v, accum, at);
        if (!Config::kStores || pixel >= 0 && channel_of(batch, i / 2) < params.k)
          Config::Steps::apply(v, params.p.p, params.scalars, channel, int64_t(pixel) * params.k + channel,
                               fetched[batch % 2][i]);
        ptx::st_shared(buffer + place_of(i), rounded<Element>(v).words[0]);
      }
      ptx::fence_view_async_shared();
      __syncwarp();
      if (ptx::elect_one_sync())
        at_piece(params, tile, first_block, warp % 4, batch, [&](int c, int w, int h, int n) {
          if (P::kPatch) ptx::tma_store_4d(params.output_map, buffer, c, w, h, n);
          else ptx::tma_store_2d(params.output_map, buffer, c, w);
        });
      ptx::tma_store_arrive();
    }
  }
};

}  // namespace at
