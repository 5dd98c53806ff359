// The direct epilogue of the convolution: the steps run on registers, and each thread stores its vectors of eight
// channels.
#pragma once
#include "sm90/conv2d/split.cuh"
#include "sm90/conv2d/stage.cuh"
#include "sm90/fragment.cuh"

namespace at {

template <typename Config>
struct Conv2dStore : Conv2dStage<Config> {
  using P = Conv2dPlan<Config>;
  using Element = typename P::Element;
  using Layout = typename P::Layout;
  using ClusterCoord = typename P::ClusterCoord;
  using Params = typename P::Params;
  using Accum = typename P::Accum;
  using Tile = typename P::Tile;
  using Stage = Conv2dStage<Config>;

  // Vectors whose operands are fetched together, while the group before is worked on.
  static constexpr int kGroup = P::kVectors < 4 ? P::kVectors : 4, kVectorGroups = (P::kVectors + kGroup - 1) / kGroup;

  // Calls work(index in the group, coord, channel, offset, inside) for this thread's vectors of a group. Vectors
  // outside the output are computed too, with a channel that exists: with a branch per vector each would wait for its
  // own operands.
  template <typename Work>
  AT_DEVICE static void each_vector(const Params& params, const ClusterCoord& cta, const Tile& tile,
                                    const int (&pixels)[P::kBlocks][2], int group, const Work& work) {
    AT_UNROLL for (int j = 0; j < kGroup; ++j) {
      const int i = group * kGroup + j;
      if (i >= P::kVectors) continue;
      const FragmentCoord at = fragment_coord<P::kBlocks>(i);
      if (P::kSlices > 1 && !(SplitTile<Config>::slice_vectors(cta) >> i & 1)) continue;
      const int wanted = tile.n * P::kN + at.channel() + threadIdx.x % 4 * 8;
      const int channel = min(wanted, params.k - P::kVector);
      const bool in_bounds = pixels[at.block][at.half] >= 0 && wanted < params.k;
      work(j, at, channel, int64_t(pixels[at.block][at.half]) * params.k + channel, in_bounds);
    }
  }

  AT_DEVICE static void find_pixels(const Params& params, const Tile& tile, int first_block,
                                    int (&pixels)[P::kBlocks][2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    AT_UNROLL for (int i = 0; i < 2 * P::kBlocks; ++i)
      pixels[i / 2][i % 2] = Stage::output_pixel(params, tile, first_block + i / 2, 16 * warp + 8 * (i % 2) + lane / 4);
  }

  // The tensors that the steps read: the first group's are fetched while the gates or sums are still computed, then
  // always the next group's.
  struct Early {
    int pixels[P::kBlocks][2];
    typename Config::Steps::Fetched fetched[2][kGroup];
    AT_DEVICE Early() {}
    AT_DEVICE void begin(const Params& params, const ClusterCoord& cta, const Tile& tile, int first_block) {
      find_pixels(params, tile, first_block, pixels);
      fetch(params, cta, tile, 0);
    }
    AT_DEVICE void fetch(const Params& params, const ClusterCoord& cta, const Tile& tile, int group) {
      each_vector(params, cta, tile, pixels, group, [&](int j, FragmentCoord, int, int64_t offset, bool in_bounds) {
        if (in_bounds) Config::Steps::fetch(fetched[group % 2][j], params.p.p, offset);
      });
    }
  };

  AT_DEVICE static void store_tile(const Params& params, const ClusterCoord& cta, const Tile& tile, Accum& accum,
                                   Early& early) {
    AT_UNROLL for (int group = 0; group < kVectorGroups; ++group) {
      if (group + 1 < kVectorGroups) early.fetch(params, cta, tile, group + 1);
      each_vector(params, cta, tile, early.pixels, group,
                  [&](int j, FragmentCoord at, int channel, int64_t offset, bool in_bounds) {
                    float v[P::kVector];
                    load_fragment(v, accum, at);
                    if (!Config::kStores || in_bounds)
                      Config::Steps::apply(v, params.p.p, params.scalars, channel, offset, early.fetched[group % 2][j]);
                    if (in_bounds) store(v, static_cast<Element*>(params.p.p[P::kY]) + offset);
                  });
    }
  }
};

}  // namespace at
