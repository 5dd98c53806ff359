// A network's first convolution with its 3x3 max pool (cuda/stem.cuh), and the 1x1 convolution that reads their result.
// Image in NCHW, outputs in NHWC.
//
// A thread of the stem holds eight neighbouring channels of one pooled pixel for each 32 channels. The channels of the
// 1x1 convolution are summed in any order. Its weights are permuted along K so that these values, rounded, are the
// thread's part of operand A: row g is pixel g of a pooled row, and row g + 8 is the pixel below. So the pooled tensor
// goes from accumulators to the second product in registers, and both rows of pixels use one read of the weights. Of
// the 16 rows, 14 are pixels.
//
// With mma.sync the warps of a strip split the channels. They exchange their parts of operand A through shared memory,
// and each computes a share of the outputs.
#pragma once
#include "common/ptx/mbarrier.cuh"
#include "cuda/stem.cuh"

namespace at {

template <typename Config>
struct StemPointwiseKernel {
  using Stem = StemKernel<Config>;
  using Element = typename Config::Element;
  using Problem = typename Config::Problem;
  using Params = typename Stem::Params;
  using Place = typename Stem::Place;
  using Column = typename Stem::Column;
  static constexpr bool kWgmma = Config::kWgmma;
  static constexpr int kSlices = Config::kSlices, kStrips = Config::kStrips, kThreads = Stem::kThreads;
  static constexpr int kHidden = Stem::kN * kSlices;           // channels of the pooled tensor, rounded up
  static constexpr int kOutputs = Config::kOutputs / kSlices;  // of a warp
  static constexpr int kOwnSteps = Stem::kN / 16, kSteps = kHidden / 16;
  static_assert(Stem::kPool && Stem::kRows % 2 == 0, "pooled rows come in pairs");
  static constexpr int kColumns = Config::kColumns;  // outputs of a product
  static_assert(kColumns % 32 == 0, "a thread stores eight neighbouring channels of each 32");
  static_assert(kOutputs % kColumns == 0, "products fill a warp's outputs");
  // Indices of the pointers: Problem.operands() of stem_pointwise.
  enum { kWeight2 = 2, kY = 3 };

  // Shared memory after the stem's: the weights, and two buffers in which the warps of a strip exchange operand A.
  static constexpr int kAlignment = 256;  // the swizzle pattern of wgmma's weights
  static constexpr int kWeightBytes = kHidden * Config::kOutputs * 2;
  static constexpr int kPartBytes = kOwnSteps * 32 * 16;  // of a warp
  static constexpr int kBufferBytes = kSlices > 1 ? kStrips * kSlices * kPartBytes : 0;
  static constexpr int kSharedBytes = Stem::kSharedBytes + kAlignment + kWeightBytes + 2 * kBufferBytes;

  // Returns two neighbouring weights along K as an operand register; n: output, counted in the permuted order.
  AT_DEVICE static uint32_t weights(const Params& params, int n, int k) {
    const int output = n / 32 * 32 + n % 8 / 2 * 8 + n % 32 / 8 * 2 + n % 2;
    const int channel = k / 32 * 32 + k % 8 / 2 * 8 + k / 16 % 2 * 4 + k % 16 / 8 * 2;
    const Element* from = (const Element*)params.p.p[kWeight2] + (int64_t)output * params.a.k + channel;
    return output < params.a.outputs && channel < params.a.k ? *(const uint32_t*)from : 0;
  }

  // The sink of the stem's pooled rows.
  struct Product {
    char* shared;
    uint32_t address;  // of `shared`
    uint32_t operand[kOwnSteps][4];

    AT_DEVICE Product(const Params& params, char* memory) {
      const uint32_t base = (uint32_t)__cvta_generic_to_shared(memory);
      address = (base + kAlignment - 1) & ~(uint32_t)(kAlignment - 1), shared = memory + (address - base);
#pragma unroll
      for (int step = 0; step < kOwnSteps; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) operand[step][i] = 0;
      for (int i = threadIdx.x; i < kWeightBytes / 4; i += kThreads) {
        int n, k, place;
        if constexpr (kWgmma) {  // (step, n, k / 2), swizzled as the stem's weights
          n = i / 8 % kOutputs, k = i / 8 / kOutputs * 16 + i % 8 * 2;
          place = i / 8 * 32 + (i % 8 / 4 ^ n / 4 % 2) * 16 + i % 4 * 4;
        } else {  // (two steps, eighth of the outputs, lane, step of the two, half of the step)
          const int lane = i / 4 % 32, group = i / 128;
          n = group % (Config::kOutputs / 8) * 8 + lane / 4;
          k = group / (Config::kOutputs / 8) * 32 + i % 4 * 8 + lane % 4 * 2;
          place = i * 4;
        }
        *(uint32_t*)(shared + place) = weights(params, n, k);
      }
    }

    // Applies the first steps to a pooled row of pixels and, below every second row, multiplies.
    AT_DEVICE void operator()(const Params& params, const Place& at, const Column& column, int row,
                              const typename Stem::Sums& pooled) {
      const Problem& a = params.a;
      if (row < a.p && is_pixel(params, column)) {
        const int64_t pixel = pixel_index(params, at, column, row);
        // Without a branch for each vector, the loads of the steps' operands overlap.
        if (a.k == kHidden) append_row<true>(params, column, pixel, pooled);
        else append_row<false>(params, column, pixel, pooled);
      } else {
#pragma unroll
        for (int step = 0; step < kOwnSteps; ++step) append(operand[step], 0, 0);
      }
      if (row % 2 == 1) multiply(params, at, column, row - 1);
    }

    template <bool kAll>
    AT_DEVICE void append_row(const Params& params, const Column& column, int64_t pixel,
                              const typename Stem::Sums& pooled) {
      const Problem& a = params.a;
#pragma unroll
      for (int block = 0; block < Stem::kN / 32; ++block) {
        const int channel = column.channel + 32 * block;
        uint4 words = {0, 0, 0, 0};
        if (kAll || channel < a.k) {
          float v[8];
#pragma unroll
          for (int j = 0; j < 8; ++j) v[j] = pooled[16 * block + j / 2 * 4 + j % 2];
          Config::hidden(v, params.p.p, a.scalars, channel, pixel * a.k + channel);
          words = rounded<Element>(v).words[0];
        }
        append(operand[2 * block], words.x, words.y);
        append(operand[2 * block + 1], words.z, words.w);
      }
    }

    // Moves the row of pixels in `step` up, and adds the one below.
    AT_DEVICE static void append(uint32_t (&step)[4], uint32_t first, uint32_t second) {
      step[0] = step[1], step[2] = step[3], step[1] = first, step[3] = second;
    }

    // Computes two rows of pixels, kColumns outputs at a time: sums of all would take too many registers.
    AT_DEVICE void multiply(const Params& params, const Place& at, const Column& column, int row) {
      if constexpr (kSlices > 1) exchange(column, row);
#pragma unroll 1
      for (int first = 0; first < kOutputs; first += kColumns) {
        float sums[1][kColumns / 2];
        products(sums, column, row, first);
        store(params, at, column, row, first, sums[0]);
      }
    }

    AT_DEVICE void products(float (&sums)[1][kColumns / 2], const Column& column, int row, int first) const {
      if constexpr (kWgmma) {
        ptx::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const uint32_t from = address + (step * kOutputs + first) * 32;
          const uint64_t b = ptx::SmemDescriptor{ptx::descriptor_lo(from), ptx::descriptor_hi<32>(256)};
          Config::wgmma(sums[0], operand[step], b, step > 0);
        }
        ptx::warpgroup_commit_batch();
        ptx::warpgroup_wait<0>();
        ptx::warpgroup_fence_operand(sums);
      } else {
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) sums[0][i] = 0.f;
#pragma unroll
        for (int two = 0; two < kSteps / 2; ++two) {
          uint32_t a[2][4];
          load_operand(a, column, row, two);
#pragma unroll
          for (int n8 = 0; n8 < kColumns / 8; ++n8) {
            const int group = two * (Config::kOutputs / 8) + (slice() * kOutputs + first) / 8 + n8;
            const uint4 b = ((const uint4*)shared)[group * 32 + threadIdx.x % 32];
            auto& d = reinterpret_cast<float (&)[4]>(sums[0][4 * n8]);
            mma<Element>(d, a[0], b.x, b.y);
            mma<Element>(d, a[1], b.z, b.w);
          }
        }
      }
    }

    AT_DEVICE static int slice() { return threadIdx.x / 32 / kStrips; }
    // Returns the part of a warp in the buffer of a pair of rows, for this thread. With two buffers one barrier for
    // each pair is enough: before a warp writes into a buffer again, all have passed the barrier after they read it.
    AT_DEVICE uint4* part(const Column& column, int row, int of_slice) const {
      char* buffer = shared + kWeightBytes + row / 2 % 2 * kBufferBytes;
      return (uint4*)(buffer + (column.strip * kSlices + of_slice) * kPartBytes) + threadIdx.x % 32;
    }
    AT_DEVICE void exchange(const Column& column, int row) const {
#pragma unroll
      for (int step = 0; step < kOwnSteps; ++step)
        part(column, row, slice())[step * 32] = {operand[step][0], operand[step][1], operand[step][2],
                                                 operand[step][3]};
      ptx::named_barrier_sync<32 * kSlices>(1 + column.strip);  // 0 is __syncthreads
    }
    AT_DEVICE void load_operand(uint32_t (&a)[2][4], const Column& column, int row, int two) const {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int step = 2 * two + i;
        if constexpr (kSlices > 1) {
          const uint4 words = part(column, row, step / kOwnSteps)[step % kOwnSteps * 32];
          a[i][0] = words.x, a[i][1] = words.y, a[i][2] = words.z, a[i][3] = words.w;
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) a[i][j] = operand[step][j];
        }
      }
    }

    // Applies the last steps to the sums of both rows of pixels, from output `first` on, and stores them.
    AT_DEVICE static void store(const Params& params, const Place& at, const Column& column, int row, int first,
                                const float (&sums)[kColumns / 2]) {
      const Problem& a = params.a;
      if (row >= a.p || !is_pixel(params, column)) return;
      const int64_t pixel = pixel_index(params, at, column, row);
      if (a.outputs == Config::kOutputs && row + 1 < a.p) store_rows<true>(params, row, pixel, first, sums);
      else store_rows<false>(params, row, pixel, first, sums);
    }

    template <bool kAll>
    AT_DEVICE static void store_rows(const Params& params, int row, int64_t pixel, int first,
                                     const float (&sums)[kColumns / 2]) {
      const Problem& a = params.a;
#pragma unroll
      for (int block = 0; block < kColumns / 32; ++block) {
        const int channel = slice() * kOutputs + first + 32 * block + threadIdx.x % 4 * 8;
#pragma unroll
        for (int below = 0; below < 2; ++below) {
          if (!kAll && (channel >= a.outputs || row + below >= a.p)) continue;
          float v[8];
#pragma unroll
          for (int j = 0; j < 8; ++j) v[j] = sums[16 * block + j / 2 * 4 + 2 * below + j % 2];
          const int64_t offset = (pixel + below * a.q) * a.outputs + channel;
          Config::apply(v, params.p.p, a.scalars, channel, offset);
          at::store(v, (Element*)params.p.p[kY] + offset);
        }
      }
    }
  };

  // Returns whether a thread has a pixel of the output; the last of a strip's eight only serves its neighbour.
  AT_DEVICE static bool is_pixel(const Params& params, const Column& column) {
    return column.output < params.a.q && threadIdx.x % 32 < 28;
  }
  AT_DEVICE static int64_t pixel_index(const Params& params, const Place& at, const Column& column, int row) {
    return ((int64_t)at.image * params.a.p + row) * params.a.q + column.output;
  }

  AT_DEVICE static void run(const Params& params, char* shared) {
    // The stem's fence and barrier behind its own weights also make these weights visible.
    Product product(params, shared + Stem::kSharedBytes);
    Stem::run(params, shared, product);
  }

  AT_DEVICE static void prepare(const Problem& a, at_prepared* out) {
    if (a.k > kHidden || a.outputs > Config::kOutputs)
      return refused(out, "this kernel is compiled for fewer channels of the two convolutions");
    if (a.outputs % 8) return refused(out, "the outputs must be a multiple of 8");
    Stem::prepare(a, out);
    if (out->status == AT_OK) out->shared_bytes = kSharedBytes;
  }
};

}  // namespace at
