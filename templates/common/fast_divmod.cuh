// Division by a number that is known before the launch.
#pragma once

namespace at {

// Divides 0 <= n < 2^31 by a multiplication and a shift (Granlund and Montgomery, "Division by invariant integers").
struct FastDivmod {
  int divisor;
  uint32_t factor, shift;
  AT_DEVICE static FastDivmod make(int divisor) {
    uint32_t log = 0;
    while ((1ll << log) < divisor) ++log;
    if (log == 0) return {divisor, 0, 0};
    return {divisor, (uint32_t)(((1ull << (31 + log)) + divisor - 1) / divisor), log - 1};
  }
  AT_DEVICE int divide(int n) const { return divisor == 1 ? n : (int)(__umulhi(n, factor) >> shift); }
  // Returns the quotient.
  AT_DEVICE int divmod(int n, int& remainder) const {
    const int quotient = divide(n);
    remainder = n - quotient * divisor;
    return quotient;
  }
};

}  // namespace at
