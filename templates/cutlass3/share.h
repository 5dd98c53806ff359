// The share of a GEMM's steps that one cluster computes. Plain C++, for the device and for a test on the host. Here a
// tile is the tiles of one cluster, and a block is one cluster.
#pragma once
#include "cutlass2/schedule.h"

namespace at {

// A Schedule that can also be persistent: each cluster computes whole tiles, one after the other.
struct Deal : Schedule {
  AT_SCHEDULE int tiles() const { return tiles_m * tiles_n; }

  // Assigns whole tiles to at most `clusters` clusters.
  AT_SCHEDULE void persist(int clusters) {
    blocks = clusters < tiles() ? clusters : tiles();
    streamed = slots = 0;
    waves = (tiles() + blocks - 1) / blocks;
  }
};

// Some steps of one tile. After the last piece, `steps` is 0.
struct Piece {
  int tile, first, steps;
};

class Share {
  const Deal* deal_;
  int cluster_, wave_ = 0;
  int64_t step_, end_;

 public:
  AT_SCHEDULE Share(const Deal& deal, int cluster)
      : deal_(&deal), cluster_(cluster), step_(deal.first_step(cluster)), end_(deal.first_step(cluster + 1)) {}

  AT_SCHEDULE Piece current() const {
    if (step_ < end_) {
      const int first = (int)(step_ % deal_->steps), left = deal_->steps - first;
      return {(int)(step_ / deal_->steps), first, end_ - step_ < left ? (int)(end_ - step_) : left};
    }
    const int64_t tile = deal_->streamed + (int64_t)wave_ * deal_->blocks + cluster_;
    const bool exists = wave_ < deal_->waves && tile < deal_->tiles();
    return {exists ? (int)tile : 0, 0, exists ? deal_->steps : 0};
  }

  AT_SCHEDULE void advance() {
    if (step_ < end_) step_ += current().steps;
    else ++wave_;
  }
};

}  // namespace at
