// Implicit-GEMM convolution with mma.sync, for sm_80 and later; NHWC. Sums are float32, or int32 for signed bytes. The
// epilogue is float32.
//
// A tile of output pixels is a rectangle of one image, or whole images. The patch is the input under the tile. cp.async
// loads it once for all filter taps, in chunks of `kK` channels; a tap only changes the row addresses that ldmatrix
// reads. The weights stream through a ring of `kStages` buffers, also by cp.async: a step is `kTaps` taps of one chunk.
// The warps divide a tile by pixels and by output channels. `kSlices` > 1 also divides the channels of each step among
// slices of warps (sliced K); the partial sums of the slices are added in shared memory.
//
// A row of shared memory holds `kK` channels of one pixel or one filter: 64 in half precision, 128 in int8. These are
// 128 bytes, eight units of 16 bytes, which are copied and multiplied alike for both. Unit u of a row is stored in
// place u ^ key. The eight rows that ldmatrix reads at once have eight different keys, so the reads have no bank
// conflicts. The key of a pixel is the index of the output pixel that reads it, modulo 8; a tap adds the same number to
// all eight keys. The rows of filters are read in a permuted order, so that the accumulators of a thread belong to
// eight neighbouring channels.
//
// A tile of whole images with all channels can apply a squeeze-and-excitation gate (problem conv2d_se): see
// common/se_gate.cuh. With a folded squeeze (conv2d_folded_se, common/folded_se_gate.cuh) a tile may hold only some of
// the channels: each step then has kHidden more filters, and every warp multiplies its pixels by them. A residual block
// (se_block) is two such convolutions of whole images with all channels: the output of the first convolution is written
// to shared memory as the patch of the second and never reaches global memory. With a network's first layer in front
// (stem_se_block), the first patch is computed as well, from the image in registers: see stem_image.cuh.
//
// conv2d_plan.cuh has the checks and parameters before the launch, conv2d_loads.cuh the copies, conv2d_products.cuh the
// products.
#pragma once
#include "cuda/conv2d_stem.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"

namespace at {

template <typename Config>
struct ImageConv2d : ImageStem<Config> {
  using Base = ImageStem<Config>;
  using typename Base::Convolution, typename Base::Copier, typename Base::Element, typename Base::Excitation;
  using typename Base::Folded, typename Base::Kept, typename Base::Params, typename Base::Part, typename Base::Place;
  using typename Base::Problem, typename Base::Stem, typename Base::Accum, typename Base::Weights;
  using Base::clear, Base::exchange, Base::fill_patch, Base::find_rows, Base::kBlock, Base::kBlocks, Base::kColumns;
  using Base::kFirstGate, Base::kFolded, Base::kGated, Base::kHalfChunks, Base::kHiddenTiles, Base::kK, Base::kM;
  using Base::kN, Base::kOwn, Base::kRowBytes, Base::kSlices;
  using Base::kStageBytes, Base::kStages, Base::kStem, Base::kTaps, Base::kVector, Base::kWarps, Base::kWeight,
      Base::kX;
  using Base::kY, Base::load_patch, Base::multiply, Base::over, Base::take;

  // Returns the index of the output pixel that pixel m of the tile is, or -1 if m lies outside of the output.
  AT_DEVICE static int output_pixel(const Convolution& params, const Place& at, int m) {
    const int image = over(m, params.by_tile), rest = m - image * params.tile_p * params.tile_q,
              row = over(rest, params.by_q);
    const int n = at.image + image, p = at.row + row, q = at.column + rest - row * params.tile_q;
    const bool there = image < params.images && n < params.a.n && p < params.a.p && q < params.a.q;
    return there ? (n * params.a.p + p) * params.a.q + q : -1;
  }

  // kept: the stem's values to be added to the output; only used if kStem.
  AT_DEVICE static void finish(const Params& params, const Place& at, const Part& part, const Accum& accum,
                               const Kept& kept, char* shared) {
    const Problem& a = params.a;
    float own[kOwn][2][kVector];
    if constexpr (kSlices > 1) {
      exchange(part, accum, own, shared);
    } else {
      AT_UNROLL for (int i = 0; i < kOwn; ++i)
        take(own[i], accum, i / kColumns, i % kColumns);
    }
    int block[kOwn], column[kOwn], pixels[kOwn][2];
    AT_UNROLL for (int i = 0; i < kOwn; ++i) {
      const int piece = i * kSlices + (kSlices > 1 ? part.slice : 0);
      block[i] = part.m / 16 + piece / kColumns, column[i] = part.n + piece % kColumns * 32 + part.lane % 4 * kVector;
      AT_UNROLL for (int half = 0; half < 2; ++half) {
        pixels[i][half] = output_pixel(params, at, block[i] * 16 + 8 * half + part.lane / 4);
        if (at.channel + column[i] >= a.k) pixels[i][half] = -1;
      }
    }
    constexpr int kEarly = kOwn < 2 ? kOwn : 2;
    typename Config::Steps::Fetched fetched[kEarly][2];
    const auto fetch = [&](int i) {
      AT_UNROLL for (int half = 0; half < 2; ++half)
        if (pixels[i][half] >= 0)
          Config::Steps::fetch(fetched[i % kEarly][half], params.p.p,
                               (int64_t)pixels[i][half] * a.k + at.channel + column[i]);
    };
    AT_UNROLL for (int i = 0; i < kEarly; ++i)
      fetch(i);
    if constexpr (kGated || kFolded) apply_before(params, params.p.p, at, own, column);
    if constexpr (kGated) scale(params, part, own, block, column, shared + params.gate_place);
    if constexpr (kFolded) scale_folded(params, part, accum, own, column, shared);
    AT_UNROLL for (int i = 0; i < kOwn; ++i) {
      AT_UNROLL for (int half = 0; half < 2; ++half) {
        if (pixels[i][half] < 0) continue;
        const int channel = at.channel + column[i];
        const int64_t offset = (int64_t)pixels[i][half] * a.k + channel;
        if constexpr (kStem) Config::Steps::add_kept(own[i][half], params.p.p, a.scalars, channel, kept[i][half]);
        Config::Steps::apply(own[i][half], params.p.p, a.scalars, channel, offset, fetched[i % kEarly][half]);
        store(own[i][half], (Element*)params.p.p[kY] + offset);
      }
      if (i + kEarly < kOwn) fetch(i + kEarly);
    }
  }

  // Applies the steps before the gate.
  AT_DEVICE static void apply_before(const Convolution& params, void* const* p, const Place& at,
                                     float (&own)[kOwn][2][kVector], const int (&column)[kOwn]) {
    AT_UNROLL for (int i = 0; i < kOwn; ++i) AT_UNROLL
      for (int half = 0; half < 2; ++half)
        if (at.channel + column[i] < params.a.k)
          Config::Steps::before(own[i][half], p, params.a.scalars, at.channel + column[i]);
  }

  AT_DEVICE static Folded folded(const Convolution& params, char* shared) {
    return {params.a.p * params.a.q, params.hidden, params.pixel_weight, params.slabs, shared + params.gate_place};
  }

  // Applies the gate with a folded squeeze. Each slice holds partial sums of the hidden values, over its own channels.
  AT_DEVICE static void scale_folded(const Convolution& params, const Part& part, const Accum& accum,
                                     float (&own)[kOwn][2][kVector], const int (&column)[kOwn], char* shared) {
    float2 total[kBlocks][kHiddenTiles];
    AT_UNROLL for (int m = 0; m < kBlocks; ++m) AT_UNROLL
      for (int j = 0; j < kHiddenTiles; ++j) {
        const float (&v)[4] = accum[m][4 * kColumns + j];
        total[m][j] = make_float2(v[0] + v[2], v[1] + v[3]);
      }
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    if constexpr (kSlices > 1) {
      float2* memory =
          (float2*)(shared + kSlices * kM * kN * 4) + (warp % kWarps) * kBlocks * kHiddenTiles * 32 + part.lane;
      constexpr int kSlice = kWarps * kBlocks * kHiddenTiles * 32;
      AT_UNROLL for (int i = 0; i < kBlocks * kHiddenTiles; ++i)
        memory[part.slice * kSlice + i * 32] = total[i / kHiddenTiles][i % kHiddenTiles];
      __syncthreads();
      AT_UNROLL for (int i = 0; i < kBlocks * kHiddenTiles; ++i) {
        float2 sum = {0.f, 0.f};
        AT_UNROLL for (int slice = 0; slice < kSlices; ++slice) {
          const float2 other = memory[slice * kSlice + i * 32];
          sum.x += other.x, sum.y += other.y;
        }
        total[i / kHiddenTiles][i % kHiddenTiles] = sum;
      }
    }
    wait_for_all_copies();
    folded(params, shared)
        .each_block(
            total, warp, part.m / 16, 1, part.n == 0 && part.slice == 0, [] { __syncthreads(); },
            [&](int m, const float* gates) {
              AT_UNROLL for (int i = 0; i < kOwn; ++i) {
                const int piece = i * kSlices + (kSlices > 1 ? part.slice : 0);
                if (piece / kColumns != m) continue;
                float factor[kVector];
                load(factor, gates + column[i]);
                AT_UNROLL for (int half = 0; half < 2; ++half) AT_UNROLL
                  for (int e = 0; e < kVector; ++e) own[i][half][e] *= factor[e];
              }
            });
  }

  // Applies the gate that is computed from the sums themselves.
  AT_DEVICE static void scale(const Convolution& params, const Part& part, float (&own)[kOwn][2][kVector],
                              const int (&block)[kOwn], const int (&column)[kOwn], char* memory) {
    const Excitation gate(params.a.p * params.a.q, params.hidden);
    AT_UNROLL for (int i = 0; i < kOwn; ++i) {
      float v[2][kVector];
      AT_UNROLL for (int half = 0; half < 2; ++half) AT_UNROLL
        for (int e = 0; e < kVector; ++e) v[half][e] = own[i][half][e];
      gate.collect(v, memory, block[i], column[i]);
    }
    gate.excite(memory, 0, params.a.k, 0, 0, [](int peer) { return peer; });
    const float* gates = (const float*)(memory + gate.mean());
    AT_UNROLL for (int i = 0; i < kOwn; ++i) AT_UNROLL
      for (int half = 0; half < 2; ++half) {
        float factor[kVector];
        load(factor, gates + over(block[i] * 16 + 8 * half + part.lane / 4, params.by_tile) * kN + column[i]);
        AT_UNROLL for (int e = 0; e < kVector; ++e)
          own[i][half][e] *= factor[e];
      }
  }

  AT_DEVICE static void run(const Params& params, char* shared) {
    const Place at(params);
    const Part part;
    const Copier copier(params);
    const uint32_t memory = ptx::cast_smem_ptr_to_uint(shared), ring = memory + params.patches * params.patch_bytes;

    Weights weights(params, params.p.p + kWeight, at, ring);
    const Element* input = (const Element*)params.p.p[kX];
    AT_UNROLL for (int i = 0; i < kStages - 1; ++i)
      weights.load_step(params);
    if constexpr (kGated)
      Excitation(params.a.p * params.a.q, params.hidden)
          .load_weights(shared + params.gate_place, params.p.p + kFirstGate, 0, params.a.k, threadIdx.x);
    if constexpr (kFolded)
      folded(params, shared).load_weights(params.p.p + kFirstGate + 1, at.channel, params.a.k, threadIdx.x);
    if constexpr (kStem) clear(memory, 2 * params.patch_bytes);
    else if constexpr (kBlock) clear(memory + params.patch_bytes, params.patch_bytes);
    Accum accum = {};
    Kept kept;
    if constexpr (kStem) {
      Stem stem;
      stem.read_weights(params, part);
      __syncthreads();  // all threads have cleared the patch
      griddepcontrol_wait();
      if (params.stem.channels_last()) stem.template read<true>(params, at, part);
      else stem.template read<false>(params, at, part);
      stem.multiply(accum);
      fill_patch(params, part, accum, memory, [&](float (&v)[kVector], int piece, int half, int channel) {
        Config::Steps::stem(v, kept[piece][half], params.p.p, params.a.scalars, channel);
      });
    } else {
      griddepcontrol_wait();
      load_patch(params, input, at, copier, 0, memory);
    }
    commit_copies();
    if constexpr (!kBlock)
      for (int i = 1; i < params.patches; ++i)
        load_patch(params, input, at, copier, i, memory + i * params.patch_bytes);
    commit_copies();

    int pixels[kBlocks];
    find_rows(params, part, pixels);

    int chunk = 0, tap = 0, slot = 0, patch = 0;  // of this step; slot and patch: the buffers that it reads
    for (int step = 0; step < params.steps; ++step) {
      if (step == 0) wait_for_copies<1>();
      else wait_for_copies<kStages - 2>();
      __syncthreads();
      const auto copies = [&] {
        weights.load_step(params);
        if (!kBlock && tap == 0 && chunk > 0 &&
            chunk + params.patches - 1 < params.chunks) {  // all threads have read the previous chunk's patch
          const int freed = patch == 0 ? params.patches - 1 : patch - 1;
          load_patch(params, input, at, copier, chunk + params.patches - 1, memory + freed * params.patch_bytes);
        }
        commit_copies();
      };
      const uint32_t read = memory + patch * params.patch_bytes, filters = ring + slot * kStageBytes;
      if constexpr (kHalfChunks) {
        if (params.a.c - chunk * kK <= kK / 2)
          Base::template multiply<kTaps, kRowBytes / 2>(params, part, pixels, read, filters, tap, accum, copies);
        else multiply(params, part, pixels, read, filters, tap, accum, copies);
      } else {
        multiply(params, part, pixels, read, filters, tap, accum, copies);
      }
      if (++slot == kStages) slot = 0;
      if ((tap += kTaps) == params.taps) {
        tap = 0, ++chunk;
        if (++patch == params.patches) patch = 0;
        if constexpr (kBlock)
          if (chunk == 1)
            fill_patch(params, part, accum, memory + params.patch_bytes,
                       [&](float (&v)[kVector], int, int, int channel) {
                         Config::Steps::inner(v, params.p.p, params.a.scalars, channel);
                       });
      }
    }
    launch_dependents();
    finish(params, at, part, accum, kept, shared);
  }
};

}  // namespace at
