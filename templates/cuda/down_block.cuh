// A residual block with stride 2 in one kernel, with mma.sync: a 3x3 convolution with stride 2, a second 3x3
// convolution, squeeze-and-excitation, and a 1x1 projection of the average-pooled input as the identity. NHWC, at most
// 64 input channels.
//
// Both convolutions are those of conv2d.cuh, on whole images with all channels. The pool is computed from the patch of
// the first convolution, interleaved with its products. The output of the first convolution overwrites that patch and
// is the patch of the second. The products of the projection are added to the sums that the gate has scaled. One ring
// of buffers holds the weights of all three.
#pragma once
#include "cuda/conv2d.cuh"
#include "common/ptx/shared_memory.cuh"

namespace at {

template <typename Config>
struct SeDownBlock : ImageConv2d<Config> {
  using Conv2d = ImageConv2d<Config>;
  using typename Conv2d::Convolution, typename Conv2d::Copier, typename Conv2d::Element, typename Conv2d::Excitation;
  using typename Conv2d::Part, typename Conv2d::Pixel, typename Conv2d::Place, typename Conv2d::Accum,
      typename Conv2d::Weights;
  using Conv2d::kBlocks, Conv2d::kColumns, Conv2d::kCopied, Conv2d::kK, Conv2d::kM, Conv2d::kPieces, Conv2d::kRowBytes;
  using Conv2d::kStageBytes, Conv2d::kStages, Conv2d::kTaps, Conv2d::kThreads, Conv2d::kUnits, Conv2d::kVector;
  static constexpr int kSteps = 9 / kTaps;                // of one convolution and one chunk of kK channels
  static constexpr int kPooled = kM * kUnits / kThreads;  // 16-byte units of the pool that a thread computes
  static constexpr int kPooledAStep = (kPooled + kSteps - 1) / kSteps;
  // Indices of the pointers: Problem.operands() of se_down_block.
  enum { kX, kWeight1, kWeight2, kProjection, kFirstGate, kY = 8 };

  struct Params {
    Convolution first, second;
    int pooled, ring, gate;  // byte offsets in shared memory; the patches are at 0
    at_pointers p;
  };

  AT_DEVICE static void prepare(const at_conv2d_se& a, at_prepared* out) {
    at_conv2d_se second = a;
    second.h = a.p, second.w = a.q, second.c = a.k, second.stride_h = second.stride_w = 1;
    Params params;
    int64_t bytes;
    if (const char* reason = Conv2d::why_no_plan(a, a.hidden, {a.p, a.q, 1}, params.first, bytes))
      return refused(out, reason);
    if (const char* reason =
            Conv2d::why_no_plan(second, a.hidden, {a.p, a.q, (int)ceil_div(a.k, kK)}, params.second, bytes))
      return refused(out, reason);
    if (params.first.chunks > 1) return refused(out, "c must be at most 64");
    if (params.first.taps != 9) return refused(out, "the filter must be 3x3");
    params.pooled = max(params.first.patch_bytes, params.second.chunks * params.second.patch_bytes);
    params.ring = params.pooled + kM * kRowBytes, params.gate = params.ring + kStages * kStageBytes;
    bytes = params.gate + excitation(params).bytes();
    if (bytes > AT_MAX_SHARED_BYTES)
      return refused(out, "the block needs more shared memory than a thread block can have");
    prepared(out, params, ceil_div(a.n, params.first.images), 1, 1, kThreads, bytes, 0);
  }

  AT_DEVICE static Excitation excitation(const Params& params) {
    return Excitation(params.second.a.p * params.second.a.q, params.second.hidden);
  }

  // Copies the weights of the first convolution, the second and the projection, one step per call of load_step().
  struct Filters {
    Weights first, second;
    const char* projection;
    int step = 0;

    AT_DEVICE Filters(const Params& params, const Place& at, uint32_t ring)
        : first(params.first, params.p.p + kWeight1, at, ring), second(params.second, params.p.p + kWeight2, at, ring) {
      projection =
          (const char*)params.p.p[kProjection] + ((int64_t)threadIdx.x / kUnits * params.first.a.c + first.channel) * 2;
      second.slot = kSteps % kStages;
    }
    AT_DEVICE void load_step(const Params& params) {
      if (step < kSteps) first.load_step(params.first);
      else if (step < kSteps + params.second.steps) second.load_step(params.second);
      else if (step == kSteps + params.second.steps) load_projection(params);
      ++step;
    }

   private:
    AT_DEVICE void load_projection(const Params& params) const {
      const bool inside = (int)threadIdx.x % kUnits * kVector < params.first.a.c;
      AT_UNROLL for (int i = 0; i < Weights::kFilters; ++i)
        copy_async(first.to + second.slot * kStageBytes + i * kCopied * kRowBytes +
                       (Weights::kSameKeys ? 0 : Weights::swizzled(i)),
                   projection + i * kCopied * params.first.a.c * 2, 16, inside && (first.known >> i & 1));
    }
  };

  // Computes this thread's i-th unit of the pool: the mean of the nine pixels under the first convolution's taps.
  AT_DEVICE static void pool(const Convolution& params, int i, uint32_t patch, uint32_t pooled) {
    const int m = threadIdx.x / kUnits + i * kCopied, unit = threadIdx.x % kUnits;
    const Pixel own(params, m);
    if (own.image >= params.images) return;
    const uint32_t first =
        patch + ((own.image * params.patch_h + 2 * own.row) * params.patch_w + 2 * own.column) * kRowBytes;
    float total[kVector] = {};
    AT_UNROLL for (int tap = 0; tap < 9; ++tap) {
      const int code = params.tap[tap];
      Pack<Element, kVector> read;
      read.words[0] = ptx::ld_shared(first + (code & ~7) + ((unit ^ (m + code & 7)) << 4));
      AT_UNROLL for (int e = 0; e < kVector; ++e)
        total[e] += to_float(read.elements[e]);
    }
    AT_UNROLL for (int e = 0; e < kVector; ++e)
      total[e] *= 1.f / 9;
    ptx::st_shared(pooled + m * kRowBytes + ((unit ^ m & 7) << 4), rounded<Element>(total).words[0]);
  }

  AT_DEVICE static void run(const Params& params, char* shared) {
    const Place at(params.first);
    const Part part;
    const uint32_t patches = ptx::cast_smem_ptr_to_uint(shared), pooled = patches + params.pooled,
                   ring = patches + params.ring;

    Filters filters(params, at, ring);
    AT_UNROLL for (int i = 0; i < kStages - 1; ++i)
      filters.load_step(params);
    excitation(params).load_weights(shared + params.gate, params.p.p + kFirstGate, 0, params.second.a.k, threadIdx.x);
    griddepcontrol_wait();
    Conv2d::load_patch(params.first, (const Element*)params.p.p[kX], at, Copier(params.first), 0, patches);
    commit_copies();
    AT_UNROLL for (int i = 0; i < kStages - 2; ++i)
      commit_copies();  // empty: all steps wait alike

    Accum accum = {};
    int slot = 0;
    // beside(step): work that is issued after the first products of a step.
    const auto convolve = [&](const Convolution& conv, auto&& beside) {
      int pixels[kBlocks];
      Conv2d::find_rows(conv, part, pixels);
      for (int chunk = 0; chunk < conv.chunks; ++chunk)
        for (int step = 0; step < kSteps; ++step) {
          wait_for_copies<kStages - 2>();
          __syncthreads();
          const uint32_t patch = patches + chunk * conv.patch_bytes;
          Conv2d::multiply(conv, part, pixels, patch, ring + slot * kStageBytes, step * kTaps, accum, [&] {
            filters.load_step(params);
            commit_copies();
            beside(step);
          });
          if (++slot == kStages) slot = 0;
        }
    };
    convolve(params.first, [&](int step) {
      for (int i = step * kPooledAStep; i < min((step + 1) * kPooledAStep, kPooled); ++i)
        pool(params.first, i, patches, pooled);
    });
    __syncthreads();  // all threads have read x
    Conv2d::clear(patches, params.second.chunks * params.second.patch_bytes);
    __syncthreads();
    Conv2d::fill_patch(params.second, part, accum, patches, [&](float (&v)[kVector], int, int, int channel) {
      Config::Steps::inner(v, params.p.p, params.second.a.scalars, channel);
    });
    convolve(params.second, [](int) {});
    launch_dependents();
    finish(params, at, part, accum, pooled, ring + slot * kStageBytes, shared + params.gate);
  }

  AT_DEVICE static void finish(const Params& params, const Place& at, const Part& part, Accum& accum, uint32_t pooled,
                               uint32_t projection, char* memory) {
    const Convolution& conv = params.second;
    float own[kPieces][2][kVector];
    int block[kPieces], column[kPieces];
    AT_UNROLL for (int i = 0; i < kPieces; ++i) {
      Conv2d::take(own[i], accum, i / kColumns, i % kColumns);
      block[i] = part.m / 16 + i / kColumns, column[i] = part.n + i % kColumns * 32 + part.lane % 4 * kVector;
    }
    Conv2d::apply_before(conv, params.p.p, at, own, column);
    Conv2d::scale(conv, part, own, block, column, memory);  // also waits for all copies and the pool
    AT_UNROLL for (int i = 0; i < kPieces; ++i) AT_UNROLL
      for (int half = 0; half < 2; ++half) {
        if (column[i] < conv.a.k) Config::Steps::gated(own[i][half], params.p.p, conv.a.scalars, column[i]);
        AT_UNROLL for (int e = 0; e < kVector; ++e)
          accum[i / kColumns][4 * (i % kColumns) + e / 2][2 * half + e % 2] = own[i][half][e];
      }

    int rows[kBlocks];
    AT_UNROLL for (int m = 0; m < kBlocks; ++m)
      rows[m] = (part.m + 16 * m + part.lane % 16) * kRowBytes;
    Conv2d::template multiply<1>(params.first, part, rows, pooled, projection, 0, accum, [] {});
    AT_UNROLL for (int i = 0; i < kPieces; ++i) {
      Conv2d::take(own[i], accum, i / kColumns, i % kColumns);
      AT_UNROLL for (int half = 0; half < 2; ++half) {
        const int pixel = Conv2d::output_pixel(conv, at, block[i] * 16 + 8 * half + part.lane / 4);
        if (pixel < 0 || column[i] >= conv.a.k) continue;
        const int64_t offset = (int64_t)pixel * conv.a.k + column[i];
        Config::Steps::apply(own[i][half], params.p.p, conv.a.scalars, column[i], offset);
        store(own[i][half], (Element*)params.p.p[kY] + offset);
      }
    }
  }
};

}  // namespace at
