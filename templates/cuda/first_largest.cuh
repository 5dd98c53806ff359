// The largest of several packs, element by element, and the place of the first largest value of each element.
#pragma once
#include "cuda/largest.cuh"

namespace at {

// Values are taken in order. An equal value does not replace an earlier one. NaN stays in `values`, and its place is
// not known. Places have 16 bits.
template <typename Element, int N>
struct FirstLargest {
  static constexpr bool kPairs = sizeof(Element) == 2 && N % 2 == 0;  // 16-bit elements are compared in pairs
  static constexpr int kLanes = kPairs ? 2 : 1;
  static constexpr uint32_t kEach = kPairs ? 0x10001 : 1;  // the place 1 of each lane

  Pack<Element, N> values;
  uint32_t places[N / kLanes];

  AT_DEVICE void start(const Pack<Element, N>& x) {
    values = x;
    AT_UNROLL for (int i = 0; i < N / kLanes; ++i)
      places[i] = 0;
  }
  AT_DEVICE void take(const Pack<Element, N>& x, int place) {
    AT_UNROLL for (int i = 0; i < N / kLanes; ++i)
      take_lanes(i, x, place * kEach);
  }
  // shift: what is added to the places of the later values.
  AT_DEVICE void take(const FirstLargest& later, int shift) {
    AT_UNROLL for (int i = 0; i < N / kLanes; ++i)
      take_lanes(i, later.values, later.places[i] + shift * kEach);
  }
  AT_DEVICE int place(int e) const { return places[e / kLanes] >> (e % kLanes * 16) & 0xffff; }
  // Returns whether each value is a number greater than minus infinity.
  AT_DEVICE bool are_above_lowest() const {
    bool above = true;
    if constexpr (kPairs) {
      typename Pair<Element>::type bound;
      from_floats(reinterpret_cast<Element*>(&bound), lowest(), lowest());
      AT_UNROLL for (int i = 0; i < N / 2; ++i)
        above &= __hgt2_mask(pair(values, i), bound) == 0xffffffff;
    } else {
      AT_UNROLL for (int e = 0; e < N; ++e)
        above &= to_float(values.elements[e]) > lowest();
    }
    return above;
  }

 private:
  AT_DEVICE static auto pair(const Pack<Element, N>& from, int i) {
    return reinterpret_cast<const typename Pair<Element>::type*>(from.elements)[i];
  }
  AT_DEVICE void take_lanes(int i, const Pack<Element, N>& x, uint32_t its_places) {
    if constexpr (kPairs) {
      const auto a = pair(values, i), b = pair(x, i);
      const uint32_t greater = __hgt2_mask(b, a);
      reinterpret_cast<typename Pair<Element>::type*>(values.elements)[i] = __hmax2_nan(a, b);
      places[i] = (places[i] & ~greater) | (its_places & greater);
    } else {
      const float a = to_float(values.elements[i]), b = to_float(x.elements[i]);
      places[i] = b > a ? its_places : places[i];
      from_float(values.elements[i], larger(a, b));
    }
  }
};

}  // namespace at
