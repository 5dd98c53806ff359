// Counting without divisions: places in a ring of buffers, quotients by numbers that are known before a launch.
#pragma once

namespace at {

// Where in a ring of buffers, and in which round.
struct Ring {
  int slot;
  uint32_t parity;
  AT_DEVICE void advance(int slots) {
    if (++slot == slots) slot = 0, parity ^= 1;
  }
  AT_DEVICE void skip(int count, int slots) {
    slot += count;
    parity ^= slot / slots & 1;
    slot %= slots;
  }
};

// Divides what is below 2^31 by a number known before the launch: a multiplication and a shift.
struct Divider {
  int divisor;
  uint32_t factor, shift;
  AT_DEVICE static Divider by(int divisor) {
    uint32_t log = 0;
    while ((1ll << log) < divisor) ++log;
    if (log == 0) return {divisor, 0, 0};
    return {divisor, (uint32_t)(((1ull << (31 + log)) + divisor - 1) / divisor), log - 1};
  }
  AT_DEVICE int quotient(int n) const { return divisor == 1 ? n : (int)(__umulhi(n, factor) >> shift); }
  AT_DEVICE int split(int n, int& remainder) const {
    const int q = quotient(n);
    remainder = n - q * divisor;
    return q;
  }
};

}  // namespace at
