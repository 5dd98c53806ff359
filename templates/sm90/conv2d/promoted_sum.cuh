// Sums of e4m3 products in two parts. Hopper's tensor cores round a sum of such products to about 14 bits. So float32
// registers take over the tensor core's part every so often (parameter `promote`).
#pragma once
#include "common/ptx/wgmma.cuh"

namespace at {

struct PromotedSum {
  float part, whole;  // what the tensor core adds to, and the parts before
  AT_DEVICE operator float() const { return part + whole; }
  AT_DEVICE PromotedSum& operator=(float value) {
    part = 0.f, whole = value;
    return *this;
  }
};

namespace ptx {

template <int kBlocks, int N>
AT_DEVICE void warpgroup_fence_operand(PromotedSum (&accumulators)[kBlocks][N]) {
  AT_UNROLL for (int block = 0; block < kBlocks; ++block) AT_UNROLL
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(accumulators[block][i].part)::"memory");
}

}  // namespace ptx

AT_DEVICE void add_packed(PromotedSum& sum, float part) { sum.whole += part; }

// Takes over the parts when their products are complete. first: there are none yet.
template <int kBlocks, int N>
AT_DEVICE void promote(PromotedSum (&accum)[kBlocks][N], bool first) {
  ptx::warpgroup_commit_batch();
  ptx::warpgroup_wait<0>();
  ptx::warpgroup_fence_operand(accum);
  AT_UNROLL for (int block = 0; block < kBlocks; ++block) AT_UNROLL
    for (int i = 0; i < N; ++i) {
      PromotedSum& sum = accum[block][i];
      sum.whole = first ? 0.f : sum.whole + sum.part;
    }
  ptx::warpgroup_fence_operand(accum);
}

}  // namespace at
