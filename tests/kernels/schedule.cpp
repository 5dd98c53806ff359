// Tests templates/cutlass2/schedule.h with many schedules; prints each violated property.
#include <stdint.h>
#include <stdio.h>

#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "cutlass2/schedule.h"

static const char* broken(const at::Schedule& s) {
  std::set<std::pair<int, int>> places;
  for (int tile = 0; tile < s.tiles_m * s.tiles_n; ++tile) {
    int m, n;
    s.coordinates(tile, m, n);
    if (m < 0 || m >= s.tiles_m || n < 0 || n >= s.tiles_n) return "a tile lies outside";
    if (!places.insert({m, n}).second) return "two tiles lie at one place";
  }

  std::vector<int> taken(s.tiles_m * s.tiles_n, 0);
  std::map<int, std::vector<std::pair<int, int>>> parts;  // tile -> (block, steps) of blocks with a part of the tile
  std::set<int64_t> slots;
  for (int block = 0; block < s.blocks; ++block) {
    int64_t step = s.first_step(block);
    const int64_t end = s.first_step(block + 1);
    if (s.streamed && step == end) return "a block has no share";
    while (step < end) {
      const int tile = (int)(step / s.steps), first = (int)(step % s.steps);
      const int steps = (int)(end - step < s.steps - first ? end - step : s.steps - first);
      if (taken[tile] != first) return "steps of a tile are not dealt in order";
      taken[tile] += steps;
      if (s.owner(step) != block || s.owner(step + steps - 1) != block) return "a step has another owner";
      if (steps < s.steps) {
        parts[tile].push_back({block, steps});
        const int64_t slot = s.slot(block, tile);
        if (slot < 0 || slot >= (int64_t)s.blocks * s.slots) return "a slot lies outside";
        if (!slots.insert(slot).second) return "two parts share a slot";
      }
      step += steps;
    }
    for (int wave = 0; wave < s.waves; ++wave) {
      const int tile = s.streamed + wave * s.blocks + block;
      if (tile >= s.tiles_m * s.tiles_n || taken[tile]) return "a whole tile is not free";
      taken[tile] = s.steps;
    }
  }
  for (const int steps : taken)
    if (steps != s.steps) return "a tile lacks steps";
  for (const auto& [tile, of] : parts) {
    const int from = s.owner((int64_t)tile * s.steps), to = s.owner((int64_t)(tile + 1) * s.steps - 1);
    if (to - from + 1 != (int)of.size()) return "the last to arrive waits for the wrong number";
    for (int i = 0; i < (int)of.size(); ++i)
      if (of[i].first != from + i) return "a part's block is not among those that are added";
  }
  return nullptr;
}

int main() {
  std::mt19937 random(1);
  const auto pick = [&](int from, int to) { return (int)(from + random() % (to - from + 1)); };
  int dealt = 0, streamed = 0, mixed = 0, split = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    at::Schedule s{};
    s.tiles_m = pick(1, 12);
    s.tiles_n = pick(1, 9);
    s.steps = pick(1, 20);
    s.swizzle = pick(0, 3);
    const bool stream = pick(0, 1);
    const int slices = stream ? 1 : pick(1, 6), blocks = stream ? pick(1, 60) : 0;
    if (!s.deal(slices, blocks)) {
      if (slices <= s.steps) return printf("a schedule is refused\n");
      continue;
    }
    if (!stream && s.blocks != s.tiles_m * s.tiles_n * slices) return printf("a slice has no block\n");
    if (const char* why = broken(s))
      return printf("%d x %d tiles of %d steps, %d slices, %d blocks: %s\n", s.tiles_m, s.tiles_n, s.steps, slices,
                    blocks, why);
    ++dealt;
    streamed += stream && s.streamed;
    mixed += s.streamed && s.waves;
    split += slices > 1;
  }
  if (dealt < 10000 || streamed < 1000 || mixed < 500 || split < 1000) return printf("too few cases\n");
  printf("ok\n");
}
