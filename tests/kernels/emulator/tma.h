// TMA: tiled and im2col loads to swizzled shared memory, stores from it, and copies to other blocks of a cluster.
#pragma once
#include "emulator/cluster.h"

namespace emu {

struct Map {
  at_tensor_map wanted;
  const char* base;
};

inline int bytes_of_element(const at_tensor_map& map) { return map.element == 0 ? 1 : 2; }  // 0: bytes

inline uint32_t swizzled(uint32_t address, int row_bytes) {
  const int bits = row_bytes == 128 ? 7 : row_bytes == 64 ? 3 : 1;
  return address ^ ((address >> 7 & bits) << 4);
}

inline void store_box(Block& block, uint32_t to, const Map& map, const std::vector<int>& from) {
  const at_tensor_map& m = map.wanted;
  const int row_bytes = m.swizzle == 3 ? 128 : m.swizzle == 2 ? 64 : 32;
  std::vector<int> count, at(m.rank, 0);
  for (int i = 0; i < m.rank; ++i) count.push_back((m.box[i] + m.element_strides[i] - 1) / m.element_strides[i]);
  const int size = bytes_of_element(m);
  for (uint32_t offset = 0;; offset += size) {
    bool inside = true;
    int64_t place = 0;
    for (int i = 0; i < m.rank; ++i) {
      const int64_t x = from[i] + at[i] * (int64_t)m.element_strides[i];
      inside &= x >= 0 && x < (int64_t)m.sizes[i];
      place += x * (i ? (int64_t)m.strides[i - 1] : size);
    }
    uint16_t value = 0;
    if (inside) std::memcpy(&value, map.base + place, size);
    std::memcpy(block.memory + swizzled(to + offset, row_bytes), &value, size);
    int i = 0;
    while (i < m.rank && ++at[i] == count[i]) at[i++] = 0;
    if (i == m.rank) return;
  }
}

inline void load(uint32_t to, const void* params_map, uint32_t barrier, std::vector<int> from, uint32_t to_blocks) {
  const Map* map;
  std::memcpy(&map, params_map, sizeof map);
  int bytes = bytes_of_element(map->wanted);
  for (int i = 0; i < map->wanted.rank; ++i)
    bytes *= (map->wanted.box[i] + map->wanted.element_strides[i] - 1) / map->wanted.element_strides[i];
  if (to % 128) fail("TMA to " + std::to_string(to));
  for (auto& block : blocks) {
    if (to_blocks ? !(to_blocks >> block->rank & 1) : block.get() != &own()) continue;
    Block* target = block.get();
    transfer([=] { store_box(*target, to, *map, from), come(*target, barrier, bytes); });
  }
}

// Loads pixels of the im2col matrix: base pixels run through the bounding box of one image, then of the next.
inline void load_im2col(uint32_t to, const void* params_map, uint32_t barrier, std::vector<int> from, int offset_w,
                        int offset_h, uint32_t to_blocks) {
  const Map* map;
  std::memcpy(&map, params_map, sizeof map);
  const at_tensor_map m = map->wanted;
  const char* base = map->base;
  if (to % 128) fail("TMA to " + std::to_string(to));
  for (auto& block : blocks) {
    if (to_blocks ? !(to_blocks >> block->rank & 1) : block.get() != &own()) continue;
    Block* target = block.get();
    transfer([=] {
      const int row_bytes = m.swizzle == 3 ? 128 : m.swizzle == 2 ? 64 : 32, size = bytes_of_element(m);
      int w = from[1], h = from[2], n = from[3];
      for (int pixel = 0; pixel < m.pixels; ++pixel) {
        const int at[3] = {w + offset_w, h + offset_h, n};
        bool inside = true;
        int64_t place = 0;
        for (int i = 0; i < 3; ++i)
          inside &= at[i] >= 0 && at[i] < (int64_t)m.sizes[i + 1], place += at[i] * (int64_t)m.strides[i];
        for (uint32_t c = 0; c < m.box[0]; ++c) {
          uint16_t value = 0;
          if (inside && from[0] + c < m.sizes[0]) std::memcpy(&value, base + place + size * (from[0] + c), size);
          std::memcpy(target->memory + swizzled(to + pixel * row_bytes + size * c, row_bytes), &value, size);
        }
        if ((w += m.element_strides[1]) < (int64_t)m.sizes[1] + m.upper[0]) continue;
        w = m.lower[0];
        if ((h += m.element_strides[2]) < (int64_t)m.sizes[2] + m.upper[1]) continue;
        h = m.lower[1], ++n;
      }
      come(*target, barrier, m.pixels * row_bytes);
    });
  }
}

// Stores a box. It reads shared memory at once or, if `late`, when its thread waits for the bulk group.
inline void store(const void* params_map, uint32_t from, std::vector<int> to) {
  const Map* map;
  std::memcpy(&map, params_map, sizeof map);
  Block* block = &own();
  auto work = [=] {
    const at_tensor_map& m = map->wanted;
    const int row_bytes = m.swizzle == 3 ? 128 : m.swizzle == 2 ? 64 : 32, size = bytes_of_element(m);
    std::vector<int> at(m.rank, 0);
    for (uint32_t offset = 0;; offset += size) {
      bool inside = true;
      int64_t place = 0;
      for (int i = 0; i < m.rank; ++i) {
        const int64_t x = to[i] + at[i];
        inside &= x >= 0 && x < (int64_t)m.sizes[i];
        place += x * (i ? (int64_t)m.strides[i - 1] : size);
      }
      if (inside) std::memcpy((char*)map->base + place, block->memory + swizzled(from + offset, row_bytes), size);
      int i = 0;
      while (i < m.rank && ++at[i] == (int)m.box[i]) at[i++] = 0;
      if (i == m.rank) return;
    }
  };
  if (late) current->open_stores.push_back(work);
  else work();
}
inline void commit_stores() {
  current->stores.push_back(std::move(current->open_stores)), current->open_stores.clear();
}
inline void wait_for_stores(int pending) {
  for (; (int)current->stores.size() > pending; current->stores.pop_front())
    for (auto& one : current->stores.front()) one();
}

inline void send_bytes(uint32_t from, uint32_t to, int bytes, uint32_t barrier, uint32_t block) {
  Block *source = &own(), *target = blocks.at(block).get();
  transfer([=] {
    if (source->left == 0) fail("a block has ended before what it sends was read");
    std::memcpy(target->memory + to, source->memory + from, bytes);
    come(*target, barrier, bytes);
  });
}

template <typename Vector>
void send(uint32_t address, uint32_t barrier, uint32_t to, Vector v) {
  Block* target = blocks.at(to).get();
  transfer([=] {
    std::memcpy(target->memory + address, &v, sizeof v);
    come(*target, barrier, sizeof v);
  });
}

}  // namespace emu
