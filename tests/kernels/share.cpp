// Tests templates/cutlass3/share.h with many GEMMs: every step must be assigned exactly once, in whole tiles if the
// schedule is persistent. Prints each violated property.
#include <stdint.h>
#include <stdio.h>

#include <random>
#include <vector>

#include "cutlass3/share.h"

static const char* broken(const at::Deal& deal, bool whole) {
  std::vector<int> taken(deal.tiles(), 0);
  for (int cluster = 0; cluster < deal.blocks; ++cluster) {
    at::Share share(deal, cluster);
    int pieces = 0;
    for (at::Piece piece = share.current(); piece.steps > 0; share.advance(), piece = share.current(), ++pieces) {
      if (piece.tile < 0 || piece.tile >= deal.tiles()) return "a tile lies outside";
      if (piece.first != taken[piece.tile]) return "steps of a tile are not dealt in order";
      if (piece.first + piece.steps > deal.steps) return "a piece reaches beyond its tile";
      if (whole && piece.steps != deal.steps) return "a tile is taken apart";
      if (piece.steps < deal.steps && deal.owner((int64_t)piece.tile * deal.steps + piece.first) != cluster)
        return "a piece has another owner";
      taken[piece.tile] += piece.steps;
    }
    if (pieces == 0) return "a cluster has nothing to do";
    share.advance();
    if (share.current().steps != 0) return "there is something behind the last";
  }
  for (const int steps : taken)
    if (steps != deal.steps) return "a tile lacks steps";
  return nullptr;
}

int main() {
  std::mt19937 random(1);
  const auto pick = [&](int from, int to) { return (int)(from + random() % (to - from + 1)); };
  int persistent = 0, split = 0, streamed = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    at::Deal deal{};
    deal.tiles_m = pick(1, 12);
    deal.tiles_n = pick(1, 9);
    deal.steps = pick(1, 20);
    const int kind = pick(0, 2), clusters = pick(1, 60);
    if (kind == 0) deal.persist(clusters);
    else if (!deal.deal(kind == 1 ? pick(1, deal.steps) : 1, kind == 2 ? clusters : 0))
      return printf("a schedule is refused\n");
    if (kind == 0 && deal.blocks > clusters) return printf("there are more clusters than wanted\n");
    if (const char* why = broken(deal, kind == 0))
      return printf("%d x %d tiles of %d steps to %d clusters: %s\n", deal.tiles_m, deal.tiles_n, deal.steps,
                    deal.blocks, why);
    ++(kind == 0 ? persistent : kind == 1 ? split : streamed);
  }
  if (persistent < 1000 || split < 1000 || streamed < 1000) return printf("too few schedules of a kind\n");
  printf("ok\n");
}
