// The products of conv2d.cuh: a warp's part of a tile, its accumulators, and writing them to shared memory as the next
// convolution's patch.
#pragma once
#include "cuda/conv2d_loads.cuh"
#include "common/mma.cuh"
#include "common/mma_s8.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"

namespace at {

// Four sums: an access of 16 bytes to shared memory.
template <typename Sum>
struct FourSums {
  using type = float4;
};
template <>
struct FourSums<int> {
  using type = int4;
};

template <typename Config>
struct ImageProducts : ImageLoads<Config> {
  using Plan = ImagePlan<Config>;
  using Base = ImageLoads<Config>;
  using typename Base::Convolution, typename Base::Element, typename Base::Pixel, typename Base::Sum;
  using Base::kAcross, Base::kBlocks, Base::kColumns, Base::kFolded, Base::kHidden, Base::kHiddenTiles, Base::kK,
      Base::kN;
  using Base::kOwn, Base::kPieces, Base::kRowBytes, Base::kSlices, Base::kTaps, Base::kThreads, Base::kUnits,
      Base::kVector;
  using Base::kWarpM, Base::kWarpN, Base::kWarps;

  // The part of the tile that a thread's warp computes. Warp indices run through the first slice, then the next.
  struct Part {
    int lane, slice, m, n;  // m, n: the warp's first pixel and channel in the tile
    AT_DEVICE Part() {
      const int warp = ptx::warp_uniform(threadIdx.x / 32);
      lane = threadIdx.x % 32, slice = warp / kWarps;
      m = warp % kWarps / kAcross * kWarpM, n = warp % kAcross * kWarpN;
    }
  };

  using Accum = Sum[kBlocks][4 * kColumns + kHiddenTiles][4];

  // Finds the rows that this lane passes to ldmatrix, in bytes from the beginning of the patch.
  AT_DEVICE static void find_rows(const Convolution& params, const Part& part, int (&pixels)[kBlocks]) {
    AT_UNROLL for (int m = 0; m < kBlocks; ++m) {
      const Pixel own(params, part.m + 16 * m + part.lane % 16);
      const int place =
          (own.image * params.patch_h + own.row * params.a.stride_h) * params.patch_w + own.column * params.a.stride_w;
      pixels[m] = own.image < params.images ? place * kRowBytes : 0;
    }
  }

  // Adds the products of kCount taps to the sums, over the first kBytes of each row. pixels: see find_rows(). copies: a
  // function that issues the next copies; called after the first products, so that these do not wait for it.
  template <int kCount = kTaps, int kBytes = kRowBytes, typename Copies>
  AT_DEVICE static void multiply(const Convolution& params, const Part& part, const int (&pixels)[kBlocks],
                                 uint32_t patch, uint32_t weights, int tap, Accum& accum, Copies&& copies) {
    constexpr int kSteps = kBytes / 32 / kSlices;  // a product takes 32 bytes of each row
    const int lane = part.lane, row = lane % 8;
    // The four 8x8 matrices of one ldmatrix.x4. Pixels: rows 0-7 and 8-15, then the same rows 16 bytes further.
    // Filters: 8 rows, the same rows 16 bytes further, then both for the filters two further.
    const uint32_t filters = weights + (part.n + row / 2 * 8 + row % 2 + lane / 16 * 2) * kRowBytes;
    const int unit = 2 * kSteps * part.slice, filter_unit = (unit + lane / 8 % 2) ^ row;
    AT_UNROLL for (int t = 0; t < kCount; ++t) {
      const int code = params.tap[tap + t], pixel_unit = (unit + lane / 16) ^ (row + code & 7);
      const uint32_t moved = patch + (code & ~7);
      AT_UNROLL for (int step = 0; step < kSteps; ++step) {
        uint32_t a[kBlocks][4], b[2 * kColumns][4], c[(kHiddenTiles + 1) / 2 + !kFolded][4];
        AT_UNROLL for (int m = 0; m < kBlocks; ++m)
          load_matrices(a[m], moved + pixels[m] + ((pixel_unit ^ 2 * step) << 4));
        AT_UNROLL for (int n = 0; n < 2 * kColumns; ++n)
          load_matrices(b[n], filters + (t * Plan::kFilters + n / 2 * 32 + n % 2 * 4) * kRowBytes +
                                  ((filter_unit ^ 2 * step) << 4));
        AT_UNROLL for (int m = 0; m < kBlocks; ++m) AT_UNROLL
          for (int n = 0; n < 4 * kColumns; ++n)
            mma<Element>(accum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        if constexpr (kFolded) {
          // The four 8x8 matrices: eight filters, the same 8 channels further, then both for the next eight filters if
          // kHidden > 8.
          const int filter = kHidden == 8 ? row : lane / 16 * 8 + row;
          AT_UNROLL for (int n = 0; n < (kHiddenTiles + 1) / 2; ++n)
            load_matrices(c[n], weights + (t * Plan::kFilters + kN + 16 * n + filter) * kRowBytes +
                                    ((filter_unit ^ 2 * step) << 4));
          AT_UNROLL for (int m = 0; m < kBlocks; ++m) AT_UNROLL
            for (int n = 0; n < kHiddenTiles; ++n)
              mma<Element>(accum[m][4 * kColumns + n], a[m], c[n / 2][n % 2 * 2], c[n / 2][n % 2 * 2 + 1]);
        }
        if (t == 0 && step == 0) copies();
      }
    }
  }

  // Reads a 16 x 32 tile of this warp's sums: in each thread, eight channels of two pixels. An int32 sum is rounded to
  // the nearest float32.
  template <typename Value>
  AT_DEVICE static void take(Value (&v)[2][kVector], const Accum& accum, int m, int column) {
    AT_UNROLL for (int half = 0; half < 2; ++half) AT_UNROLL
      for (int e = 0; e < kVector; ++e) v[half][e] = accum[m][4 * column + e / 2][2 * half + e % 2];
  }

  // Adds the sums of all slices in a fixed order. Sums of bytes are still int32, so nothing is rounded. Each slice
  // receives every kSlices-th tile of 16 x 32.
  AT_DEVICE static void exchange(const Part& part, const Accum& accum, float (&own)[kOwn][2][kVector], char* shared) {
    __syncthreads();  // all warps have read their operands; the exchange overwrites them
    using Four = typename FourSums<Sum>::type;
    Four* memory = (Four*)shared + (threadIdx.x / 32 % kWarps * kPieces * 4) * 32 + part.lane;
    constexpr int kSlice = kWarps * kPieces * 4 * 32;
    AT_UNROLL for (int i = 0; i < kPieces; ++i) {
      Sum v[2][kVector];
      take(v, accum, i / kColumns, i % kColumns);
      AT_UNROLL for (int j = 0; j < 4; ++j) {
        const Sum* four = v[j / 2] + j % 2 * 4;
        memory[part.slice * kSlice + (4 * i + j) * 32] = {four[0], four[1], four[2], four[3]};
      }
    }
    __syncthreads();
    AT_UNROLL for (int i = 0; i < kOwn; ++i) AT_UNROLL
      for (int j = 0; j < 4; ++j) {
        Four total = {0, 0, 0, 0};
        AT_UNROLL for (int slice = 0; slice < kSlices; ++slice) {
          const Four other = memory[slice * kSlice + (4 * (i * kSlices + part.slice) + j) * 32];
          total.x += other.x, total.y += other.y, total.z += other.z, total.w += other.w;
        }
        float* to = own[i][j / 2] + j % 2 * 4;
        to[0] = total.x, to[1] = total.y, to[2] = total.z, to[3] = total.w;
      }
  }

  // ---- Values between a block's two convolutions ----

  AT_DEVICE static void clear(uint32_t patch, int bytes) {
    for (int i = 16 * threadIdx.x; i < bytes; i += 16 * kThreads) ptx::st_shared(patch + i, make_uint4(0, 0, 0, 0));
  }

  // Applies steps(v, piece, half, channel) to the sums, writes the results as patches of kK channels, and clears the
  // sums. The border of the patches stays zero.
  template <typename Steps>
  AT_DEVICE static void fill_patch(const Convolution& params, const Part& part, Accum& accum, uint32_t patch,
                                   const Steps& steps) {
    AT_UNROLL for (int i = 0; i < kPieces; ++i) {
      float v[2][kVector];
      take(v, accum, i / kColumns, i % kColumns);
      const int channel = part.n + i % kColumns * 32 + part.lane % 4 * kVector;
      AT_UNROLL for (int half = 0; half < 2; ++half) {
        const Pixel own(params, part.m + i / kColumns * 16 + 8 * half + part.lane / 4);
        const int h = own.row + params.a.pad_h, w = own.column + params.a.pad_w;
        if (own.image >= params.images || channel >= params.a.k) continue;
        steps(v[half], i, half, channel);
        const int pixel = (own.image * params.patch_h + h) * params.patch_w + w,
                  key = (own.image * params.tile_p + h) * params.tile_q + w & 7;
        const int chunk = kN > kK ? channel / kK : 0, unit = channel / kVector - chunk * kUnits;
        ptx::st_shared(patch + chunk * params.patch_bytes + pixel * kRowBytes + ((unit ^ key) << 4),
                       rounded<Element>(v[half]).words[0]);
      }
    }
    AT_UNROLL for (int m = 0; m < kBlocks; ++m) AT_UNROLL
      for (int n = 0; n < 4 * kColumns; ++n) AT_UNROLL
        for (int e = 0; e < 4; ++e) accum[m][n][e] = 0.f;
  }
};

}  // namespace at
