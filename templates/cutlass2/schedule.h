// Which block takes which steps of which tiles. Plain C++, for the device and for a test on the host.
//
// Every tile of the output takes the same number of steps. Where the tiles fill the blocks evenly, each block takes
// whole tiles. The others are laid end to end, and each block takes an equal share of their steps (stream-K); a split
// of each tile into slices is the same with as many blocks as there are slices.
#pragma once

#ifdef __CUDACC__
#define AT_SCHEDULE __device__ __forceinline__
#else
#define AT_SCHEDULE inline
#endif

namespace at {

struct Schedule {
  int tiles_m, tiles_n, steps;
  int swizzle;   // log2 of how many columns of tiles follow each other row by row
  int blocks;    // of the grid
  int streamed;  // tiles, the first ones, whose steps are dealt one by one
  int waves;     // of whole tiles, `blocks` each
  int slots;     // for partial sums of a block: its share ends in at most two tiles that it has not whole

  // slices: of each tile; stream: 0, or how many blocks share all steps. False if there are fewer steps than slices.
  AT_SCHEDULE bool deal(int slices, int stream) {
    const int64_t tiles = (int64_t)tiles_m * tiles_n, wanted = stream ? stream : tiles * slices;
    if (slices < 1 || slices > steps || (slices > 1 && stream) || wanted > 0x7fffffff) return false;
    const int64_t all = tiles * steps;
    blocks = (int)(wanted < all ? wanted : all);
    const int each = (int)(tiles / blocks);
    waves =
        tiles % blocks == 0 || each == 0 ? each : each - 1;  // a share of one tile and more hides what sharing costs
    streamed = (int)(tiles - (int64_t)waves * blocks);
    slots = stream ? 2 : 1;
    return true;
  }

  AT_SCHEDULE int64_t shared_steps() const { return (int64_t)streamed * steps; }

  // The first step of a block's share, and whose share a step lies in.
  AT_SCHEDULE int64_t first_step(int block) const { return shared_steps() * block / blocks; }
  AT_SCHEDULE int owner(int64_t step) const { return (int)(((step + 1) * blocks - 1) / shared_steps()); }

  // Where a block leaves its part of a tile: in the second slot if its share began in an earlier tile.
  AT_SCHEDULE int64_t slot(int block, int tile) const {
    return (int64_t)block * slots + (first_step(block) < (int64_t)tile * steps);
  }

  AT_SCHEDULE void coordinates(int tile, int& m, int& n) const {
    const int width = 1 << swizzle, group = tile / (tiles_m * width), in_group = tile - group * tiles_m * width;
    const int left = tiles_n - group * width, columns = left < width ? left : width;
    m = in_group / columns;
    n = group * width + in_group % columns;
  }
};

}  // namespace at
