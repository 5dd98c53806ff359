// wgmma. The products of a group are computed when a thread first waits for the group, from the shared memory of that
// moment. The group belongs to the warpgroup: it starts after all four warps have issued it, and completes for all at
// once.
#pragma once
#include "emulator/tma.h"

namespace emu {

template <typename Element>
constexpr int kDepth = 32 / sizeof(Element);  // of a product: wgmma reads 32 bytes of each row

template <typename Element>
float value_at(const char* memory, uint32_t low, uint32_t high, int row, int k) {
  const int mode = high >> 30, row_bytes = mode == 1 ? 128 : mode == 2 ? 64 : 32;
  const uint32_t start = (low & 0x3fff) << 4, group = (high & 0x3fff) << 4;
  const uint32_t address =
      swizzled(start + row / 8 * group + row % 8 * row_bytes + (int)sizeof(Element) * k, row_bytes);
  Element v;
  std::memcpy((void*)&v, memory + address, sizeof v);
  return (float)v;
}

// The same of an operand that is contiguous along its rows: in swizzled lines of 128 bytes, or in lines of 16 bytes.
template <typename Element>
float transposed_value_at(const char* memory, uint32_t low, uint32_t high, int row, int k) {
  if (high >> 30 > 1) fail("an operand along its rows needs lines of 128 bytes or of 16");
  const uint32_t start = (low & 0x3fff) << 4, leading = (low >> 16 & 0x3fff) << 4, group = (high & 0x3fff) << 4;
  const uint32_t address = high >> 30
                               ? swizzled(start + row / 64 * leading + k / 8 * group + k % 8 * 128 + row % 64 * 2, 128)
                               : start + row / 8 * group + k / 8 * leading + k % 8 * 16 + row % 8 * 2;
  Element v;
  std::memcpy((void*)&v, memory + address, sizeof v);
  return (float)v;
}

struct Rows {  // of operand A, for the two rows of a thread's sums
  float of[2][32];
};

// What the tensor core adds to: the sum itself, or the part of a sum that other registers take over.
template <typename Sum>
auto& part_of(Sum& sum) {
  if constexpr (std::is_class_v<Sum>) return sum.part;
  else return sum;
}

// Floats of 8 bits are added as Hopper does it: each term loses what lies below 14 bits of the largest one.
inline float added_in_14_bits(float sum, const float (&left)[32], const float (&right)[32]) {
  float largest = std::fabs(sum), plain = sum;
  for (int k = 0; k < 32; ++k) {
    largest = std::fmax(largest, std::fabs(left[k] * right[k]));
    plain += left[k] * right[k];
  }
  if (std::isnan(plain)) return NAN;
  if (!(largest > 0 && largest < INFINITY)) return largest > 0 ? NAN : 0;
  const double unit = std::ldexp(1., std::ilogb(largest) - 13);
  double total = std::trunc(sum / unit);
  for (int k = 0; k < 32; ++k) total += std::trunc((double)left[k] * right[k] / unit);
  return (float)(total * unit);
}

// rows: () -> Rows; called when the products are computed. value: value_at or transposed_value_at. Sum: float, int, or
// a struct with a float that is called part.
template <typename Element, typename Sum, int N, typename Operand>
void multiply_rows(Sum (&d)[N], const Operand& rows, uint64_t b, int accumulate,
                   float (*value)(const char*, uint32_t, uint32_t, int, int) = value_at<Element>) {
  Sum* sums = d;
  const char* memory = own().memory;
  const int thread = current->index.x % 128;
  current->open.push_back([=] {
    const Rows left = rows();
    for (int j = 0; j < N; j += 4)
      for (int e = 0; e < 2; ++e) {
        float right[32];
        for (int k = 0; k < kDepth<Element>; ++k)
          right[k] = value(memory, (uint32_t)b, b >> 32, 2 * j + thread % 4 * 2 + e, k);
        for (int half = 0; half < 2; ++half) {
          auto& sum = part_of(sums[j + 2 * half + e]);
          using Register = std::remove_reference_t<decltype(sum)>;
          if (!accumulate) sum = 0;
          if constexpr (sizeof(Element) == 1 && std::is_same_v<Register, float>)
            sum = added_in_14_bits(sum, left.of[half], right);
          else
            for (int k = 0; k < kDepth<Element>; ++k) sum += (Register)(left.of[half][k] * right[k]);
        }
      }
  });
}
template <typename Element, typename Sum, int N>
void multiply(Sum (&d)[N], uint64_t a, uint64_t b, int accumulate,
              float (*value)(const char*, uint32_t, uint32_t, int, int) = value_at<Element>) {
  const char* memory = own().memory;
  const int row = current->index.x % 128 / 32 * 16 + lane() / 4;
  const auto rows = [=] {
    Rows left;
    for (int half = 0; half < 2; ++half)
      for (int k = 0; k < kDepth<Element>; ++k)
        left.of[half][k] = value(memory, (uint32_t)a, a >> 32, row + 8 * half, k);
    return left;
  };
  multiply_rows<Element>(d, rows, b, accumulate, value);
}
template <typename Element, int N>
void multiply_transposed(float (&d)[N], uint64_t a, uint64_t b, int accumulate) {
  multiply<Element>(d, a, b, accumulate, transposed_value_at<Element>);
}

// Operand A in registers: four neighbouring lanes hold a row.
template <typename Element, typename Sum, int N>
void multiply(Sum (&d)[N], const uint32_t (&a)[4], uint64_t b, int accumulate,
              float (*value)(const char*, uint32_t, uint32_t, int, int) = value_at<Element>) {
  constexpr int kElements = 4 / sizeof(Element);  // of a register
  Rows left;
  for (int i = 0; i < 4; ++i)
    for (int from = 0; from < 4; ++from) {
      const uint32_t word = shuffled(0xffffffffu, a[i], lane() / 4 * 4 + from);
      Element v[kElements];
      std::memcpy((void*)v, &word, sizeof v);
      for (int e = 0; e < kElements; ++e) left.of[i % 2][kElements * (4 * (i / 2) + from) + e] = (float)v[e];
    }
  multiply_rows<Element>(d, [=] { return left; }, b, accumulate, value);
}
template <typename Element, int N>
void multiply_transposed(float (&d)[N], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  multiply<Element>(d, a, b, accumulate, transposed_value_at<Element>);
}

inline void commit_products() {
  current->groups.push_back(std::move(current->open)), current->open.clear();
  ++current->committed;
}
inline void wait_for_products(int pending) {
  const int target = current->committed - pending, first = current->index.x / 128 * 128,
            from = own().rank * own().threads + first;
  yield_until(
      [=] {
        for (int i = from; i < from + 128; ++i)
          if (threads[i]->committed < target) return false;
        return true;
      },
      "products");
  for (int i = from; i < from + 128; ++i) {
    Thread& thread = *threads[i];
    for (; thread.committed - (int)thread.groups.size() < target; thread.groups.pop_front())
      for (auto& product : thread.groups.front()) product();
  }
}

}  // namespace emu
