// Assigns steps of tiles to thread blocks. Plain C++, for the device and for a test on the host.
//
// Every output tile takes the same number of steps along K. If the tiles divide evenly among the blocks, each block
// computes whole tiles. Otherwise the steps of the remaining tiles are numbered one after the other, and each block
// takes an equal share of them (stream-K). Split-K is the special case with tiles x slices blocks.
#pragma once

#ifdef __CUDACC__
#define AT_SCHEDULE __device__ __forceinline__
#else
#define AT_SCHEDULE inline
#endif

namespace at {

struct Schedule {
  int tiles_m, tiles_n, steps;
  int swizzle;   // log2 of the number of tile columns that are visited row by row before the next columns
  int blocks;    // in the grid
  int streamed;  // the first tiles, whose steps are shared among the blocks
  int waves;     // rounds of whole tiles, one per block
  int slots;     // for partial sums, per block: a share has at most two incomplete tiles

  // slices: per tile. stream: the number of blocks that share all steps, or 0. Returns false if there are fewer steps
  // than slices.
  AT_SCHEDULE bool deal(int slices, int stream) {
    const int64_t tiles = (int64_t)tiles_m * tiles_n, wanted = stream ? stream : tiles * slices;
    if (slices < 1 || slices > steps || (slices > 1 && stream) || wanted > 0x7fffffff) return false;
    const int64_t all = tiles * steps;
    blocks = (int)(wanted < all ? wanted : all);
    const int each = (int)(tiles / blocks);
    waves =
        tiles % blocks == 0 || each == 0 ? each : each - 1;  // a share of more than one tile hides the cost of sharing
    streamed = (int)(tiles - (int64_t)waves * blocks);
    slots = stream ? 2 : 1;
    return true;
  }

  AT_SCHEDULE int64_t shared_steps() const { return (int64_t)streamed * steps; }

  // The first step of a block's share, and the block whose share contains a step.
  AT_SCHEDULE int64_t first_step(int block) const { return shared_steps() * block / blocks; }
  AT_SCHEDULE int owner(int64_t step) const { return (int)(((step + 1) * blocks - 1) / shared_steps()); }

  // Returns the slot for a block's partial sums of a tile: the second one if the block's share begins in an earlier
  // tile.
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
