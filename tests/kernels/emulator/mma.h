// mma.sync and ldmatrix, in which the lanes of a warp read each other's registers, and cp.async, which completes when a
// thread waits for its group, or at once.
#pragma once
#include "emulator/wgmma.h"

namespace emu {

// Returns the values of all lanes of the warp, after all lanes have called it.
inline std::array<uint64_t, 32> gathered(uint64_t value) {
  Collective& all = own().collectives[{current->index.x / 32, 0xffffffffu}];
  const int side = all.turn[lane()] % 2;
  exchange(0xffffffffu, value, lane());
  std::array<uint64_t, 32> result;
  std::copy(std::begin(all.values[side]), std::end(all.values[side]), result.begin());
  return result;
}

// d (16 x 8) += a (16 x K) b (K x 8), with the register layout of the PTX ISA. K: elements of 32 bytes. Sum: float or
// int.
template <typename Element, typename Sum>
void multiply_warp(Sum (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4], b[2];
  } mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const auto lanes = gathered((uint64_t)&mine);
  constexpr int kElements = 4 / sizeof(Element);  // of a register
  const auto element = [](uint32_t word, int i) {
    Element v[kElements];
    std::memcpy((void*)v, &word, sizeof v);
    return (Sum)v[i];
  };
  for (int i = 0; i < 4; ++i) {
    const int row = lane() / 4, column = lane() % 4 * 2 + i % 2;
    for (int k = 0; k < 8 * kElements; ++k) {
      const int half = k / (4 * kElements), from = k / kElements % 4;
      const auto& left = *(const Operands*)lanes[row * 4 + from];
      const auto& right = *(const Operands*)lanes[column * 4 + from];
      d[i] += element(left.a[half * 2 + i / 2], k % kElements) * element(right.b[half], k % kElements);
    }
  }
  gathered(0);  // all lanes have read the operands
}

template <int N>
void load_matrices(uint32_t (&to)[N], uint32_t row) {
  const auto rows = gathered(row);
  for (int i = 0; i < N; ++i) {
    const uint32_t address = (uint32_t)rows[8 * i + lane() / 4];
    if (address % 16) fail("ldmatrix from " + std::to_string(address));
    std::memcpy(&to[i], (char*)generic(address) + 4 * (lane() % 4), 4);
  }
}

// ldmatrix.trans: a thread receives two elements of a column.
template <int N>
void load_matrices_transposed(uint32_t (&to)[N], uint32_t row) {
  const auto rows = gathered(row);
  for (int i = 0; i < N; ++i)
    for (int e = 0; e < 2; ++e) {
      const uint32_t address = (uint32_t)rows[8 * i + lane() % 4 * 2 + e];
      if (address % 16) fail("ldmatrix from " + std::to_string(address));
      std::memcpy((char*)&to[i] + 2 * e, (char*)generic(address) + 2 * (lane() / 4), 2);
    }
}

// stmatrix.trans: a thread's two elements of a row are stored to a column.
inline void store_matrices(uint32_t row, const uint32_t (&words)[4]) {
  const auto rows = gathered(row);
  for (int i = 0; i < 4; ++i)
    for (int e = 0; e < 2; ++e) {
      const uint32_t address = (uint32_t)rows[8 * i + lane() % 4 * 2 + e];
      if (address % 16) fail("stmatrix to " + std::to_string(address));
      const uint16_t half = words[i] >> 16 * e;
      std::memcpy((char*)generic(address) + 2 * (lane() / 4), &half, 2);
    }
}

inline void copy(uint32_t to, const void* from, int bytes, int read) {
  if (to % bytes) fail("cp.async to " + std::to_string(to));
  char* place = (char*)generic(to);
  const auto work = [=] {
    std::memcpy(place, from, read);
    std::memset(place + read, 0, bytes - read);
  };
  if (late) current->open_copies.push_back(work);
  else work();
}
inline void commit_copies() {
  current->copies.push_back(std::move(current->open_copies)), current->open_copies.clear();
}
inline void wait_for_copies(int pending) {
  for (; (int)current->copies.size() > pending; current->copies.pop_front())
    for (auto& work : current->copies.front()) work();
}

}  // namespace emu
