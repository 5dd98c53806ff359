// A convolution of images by the tensor cores' instruction that every GPU from sm_80 on has (mma.sync), NHWC.
//
// A tile of output pixels is a rectangle of an image, or whole images. The input under it, its patch, is loaded once for
// all taps, `kK` channels at a time: a tap is another address of the rows that ldmatrix reads. Weights come step by step,
// `kTaps` taps of as many channels, through a ring of `kStages` buffers. Both are copied by cp.async. Warps share a tile
// by pixels, by channels and, in `kSlices`, by the channels of each step; what slices have added up meets in shared
// memory.
//
// A row of shared memory is `kK` channels of a pixel or of a filter, 128 bytes. Its units of 16 bytes are exchanged by the
// row's key, so that the eight rows that ldmatrix reads at once, which have eight keys, lie in different banks. A pixel's
// key is the number of the output pixel that reads it, modulo 8; a tap changes the keys of all eight alike. Weights are
// read in an order that makes a thread's sums those of eight neighbouring channels.
//
// A tile of whole images with all channels can have a gate (problem conv2d_se): see sm90/gate.cuh. With a folded squeeze
// (conv2d_folded_se, sm90/folded_gate.cuh) it need not have all: each step has kHidden filters more, which every warp
// multiplies its pixels by. A residual block (se_block) is two such convolutions in a row, of whole images with all
// channels: what the first one yields is the second one's patch, and needs no memory but this. conv2d_plan.cuh has what
// comes before the launch.
#pragma once
#include "cuda/conv2d_plan.cuh"
#include "cuda/copies.cuh"
#include "cuda/mma.cuh"

namespace at {

template <typename Config>
struct ImageConv2d : ImagePlan<Config> {
  using Plan = ImagePlan<Config>;
  using typename Plan::Element, typename Plan::Excitation, typename Plan::Folded, typename Plan::Params, typename Plan::Problem;
  using Plan::kAcross, Plan::kBlock, Plan::kBlocks, Plan::kColumns, Plan::kCopied, Plan::kFirstGate, Plan::kFolded, Plan::kGated;
  using Plan::kHidden, Plan::kHiddenTiles, Plan::kK, Plan::kM, Plan::kN, Plan::kOwn, Plan::kPieces, Plan::kRowBytes;
  using Plan::kSlices, Plan::kStageBytes, Plan::kStages, Plan::kTaps, Plan::kThreads, Plan::kUnits, Plan::kVector, Plan::kWarpM;
  using Plan::kWarpN, Plan::kWarps, Plan::kWeight, Plan::kX, Plan::kY, Plan::over;

  // Where a block's tile is.
  struct Place {
    int image, row, column, channel;  // of the output
    AT_DEVICE explicit Place(const Params& x) {
      const int tiles = x.tiles_p * x.tiles_q;
      image = blockIdx.x, row = column = 0, channel = blockIdx.y * kN;
      if (tiles > 1) {  // divisions would be the longest part of a small kernel's beginning
        const int index = blockIdx.x % tiles;
        image = blockIdx.x / tiles, row = index / x.tiles_q * x.tile_p, column = index % x.tiles_q * x.tile_q;
      }
      image *= x.images;
    }
  };

  // Where a pixel of the tile is in it.
  struct Pixel {
    int image, row, column;
    AT_DEVICE Pixel(const Params& x, int m) {
      image = over(m, x.by_tile);
      const int rest = m - image * x.tile_p * x.tile_q;
      row = over(rest, x.by_q), column = rest - row * x.tile_q;
    }
  };

  // The first pixel of a patch that this thread copies, and which unit of each.
  struct Copier {
    int image, row, column, unit;
    AT_DEVICE explicit Copier(const Params& x) {
      const int pixel = threadIdx.x / kUnits;
      image = over(pixel, x.by_patch), column = pixel - image * (x.patch_h * x.patch_w);
      row = over(column, x.by_patch_w), column -= row * x.patch_w, unit = threadIdx.x % kUnits;
    }
  };

  AT_DEVICE static void load_patch(const Params& x, const Place& at, Copier copier, int chunk, uint32_t to) {
    const Problem& a = x.a;
    const Element* from = (const Element*)x.p.p[kX];
    const int channel = chunk * kK + copier.unit * kVector, halved = a.stride_h - 1;
    const int top = at.row * a.stride_h - a.pad_h, left = at.column * a.stride_w - a.pad_w;
#pragma unroll 2
    for (int pixel = threadIdx.x / kUnits; pixel < x.pixels; pixel += kCopied) {
      const int n = at.image + copier.image, h = top + copier.row, w = left + copier.column;
      const bool inside = (unsigned)h < (unsigned)a.h && (unsigned)w < (unsigned)a.w && n < a.n && channel < a.c;
      const int output = (copier.image * x.tile_p + (copier.row >> halved)) * x.tile_q + (copier.column >> halved);
      const int64_t offset = (((int64_t)n * a.h + h) * a.w + w) * a.c + channel;
      copy_async(to + pixel * kRowBytes + ((copier.unit ^ output & 7) << 4), from + (inside ? offset : 0), 16, inside);
      copier.column += x.next_column, copier.row += x.next_row, copier.image += x.next_image;
      if (copier.column >= x.patch_w) copier.column -= x.patch_w, ++copier.row;
      if (copier.row >= x.patch_h) copier.row -= x.patch_h, ++copier.image;
    }
  }

  // Copies the weights of one step after the other: a thread's unit of every kCopied-th filter.
  struct Weights {
    static constexpr int kFilters = kN / kCopied, kHiddenFilters = (kHidden + kCopied - 1) / kCopied;
    static constexpr bool kSameKeys = kCopied % 32 == 0;  // of all of a thread's filters
    const char* from;  // of the thread's first filter
    const char* second;  // the same of a block's second convolution
    int chunk = 0, tap = 0, slot = 0, channel;
    const char* hidden_from;  // the same of the hidden values' filters
    uint32_t to, known;  // the unit's place in the first buffer; a bit for each filter that there is
    uint32_t hidden_to, hidden_known;
    AT_DEVICE Weights(const Params& x, const Place& at, uint32_t ring) {
      const int row = threadIdx.x / kUnits;
      channel = threadIdx.x % kUnits * kVector;
      const int64_t first = ((int64_t)(at.channel + row) * x.taps * x.a.c + channel) * 2;
      from = (const char*)x.p.p[kWeight] + first;
      if constexpr (kBlock) second = (const char*)x.p.p[kWeight + 1] + first;
      known = 0;
#pragma unroll
      for (int i = 0; i < kFilters; ++i) known |= (at.channel + row + i * kCopied < x.a.k) << i;
      to = ring + row * kRowBytes;
      if constexpr (kSameKeys) to += swizzled(0);
      if constexpr (kFolded) {
        hidden_from = (const char*)x.p.p[kFirstGate] + ((int64_t)row * x.taps * x.a.c + channel) * 2;
        hidden_known = 0;
#pragma unroll
        for (int i = 0; i < kHiddenFilters; ++i) hidden_known |= (row + i * kCopied < x.hidden) << i;
        hidden_to = ring + (kN + row) * kRowBytes + (((int)threadIdx.x % kUnits ^ row % 8) << 4);
      }
    }
    // Where this thread's unit of its i-th filter is in that filter's row.
    AT_DEVICE static uint32_t swizzled(int i) {
      const int row = threadIdx.x / kUnits + i * kCopied, key = row % 32 / 8 * 2 + row % 2;
      return ((int)threadIdx.x % kUnits ^ key) << 4;
    }
    AT_DEVICE void load_step(const Params& x) {
      if (chunk < x.chunks) {
        const uint32_t tap_bytes = x.a.c * 2, filter_bytes = kCopied * x.taps * tap_bytes;
        const bool inside = channel < x.a.c;
#pragma unroll
        for (int t = 0; t < kTaps; ++t)
#pragma unroll
          for (int i = 0; i < kFilters; ++i)
            copy_async(to + slot * kStageBytes + (t * Plan::kFilters + i * kCopied) * kRowBytes + (kSameKeys ? 0 : swizzled(i)),
                       from + (i * filter_bytes + t * tap_bytes), 16, inside && (known >> i & 1));
        if constexpr (kFolded) {
          // Rows of a thread are a multiple of eight apart, so they have one key.
#pragma unroll
          for (int t = 0; t < kTaps; ++t)
#pragma unroll
            for (int i = 0; i < kHiddenFilters; ++i)
              if ((int)threadIdx.x / kUnits + i * kCopied < kHidden)
                copy_async(hidden_to + slot * kStageBytes + (t * Plan::kFilters + i * kCopied) * kRowBytes,
                           hidden_from + (i * filter_bytes + t * tap_bytes), 16, inside && (hidden_known >> i & 1));
          hidden_from += kTaps * tap_bytes;
          if (tap + kTaps == x.taps) hidden_from += kRowBytes - (int)(x.taps * tap_bytes);
        }
        from += kTaps * tap_bytes, tap += kTaps;
        if (tap == x.taps) {
          tap = 0, ++chunk;
          if constexpr (kBlock) from = second;
          else channel += kK, from += kRowBytes - (int)(x.taps * tap_bytes);
        }
      }
      if (++slot == kStages) slot = 0;
    }
  };

  // What a thread reads and sums up: a slice's warps lie side by side.
  struct Part {
    int lane, slice, m, n;  // the warp's first pixel and channel of the tile
    AT_DEVICE Part() {
      const int warp = hopper::uniform(threadIdx.x / 32);
      lane = threadIdx.x % 32, slice = warp / kWarps;
      m = warp % kWarps / kAcross * kWarpM, n = warp % kAcross * kWarpN;
    }
  };

  using Sums = float[kBlocks][4 * kColumns + kHiddenTiles][4];

  // pixels: of this lane's rows of operand, bytes from the patch's beginning. copies: begun behind the first products, so
  // that these wait for nothing else.
  template <typename Copies>
  AT_DEVICE static void multiply(const Params& x, const Part& part, const int (&pixels)[kBlocks], uint32_t patch,
                                 uint32_t weights, int tap, Sums& sums, Copies&& copies) {
    constexpr int kSteps = kK / 16 / kSlices;
    const int lane = part.lane, row = lane % 8;
    // Of ldmatrix's four matrices: pixels 0 to 7, 8 to 15, both again 8 channels on; filters, these 8 channels on, two more.
    const uint32_t filters = weights + (part.n + row / 2 * 8 + row % 2 + lane / 16 * 2) * kRowBytes;
    const int unit = 2 * kSteps * part.slice, filter_unit = (unit + lane / 8 % 2) ^ row;
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      const int code = x.tap[tap + t], pixel_unit = (unit + lane / 16) ^ (row + code & 7);
      const uint32_t moved = patch + (code & ~7);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[kBlocks][4], b[2 * kColumns][4], c[(kHiddenTiles + 1) / 2 + !kFolded][4];
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) load_matrices(a[m], moved + pixels[m] + ((pixel_unit ^ 2 * step) << 4));
#pragma unroll
        for (int n = 0; n < 2 * kColumns; ++n)
          load_matrices(b[n], filters + (t * Plan::kFilters + n / 2 * 32 + n % 2 * 4) * kRowBytes + ((filter_unit ^ 2 * step) << 4));
#pragma unroll
        for (int m = 0; m < kBlocks; ++m)
#pragma unroll
          for (int n = 0; n < 4 * kColumns; ++n) mma<Element>(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        if constexpr (kFolded) {
          // Of ldmatrix's four: eight filters, these 8 channels on; the next eight, if there are.
          const int filter = kHidden == 8 ? row : lane / 16 * 8 + row;
#pragma unroll
          for (int n = 0; n < (kHiddenTiles + 1) / 2; ++n)
            load_matrices(c[n], weights + (t * Plan::kFilters + kN + 16 * n + filter) * kRowBytes + ((filter_unit ^ 2 * step) << 4));
#pragma unroll
          for (int m = 0; m < kBlocks; ++m)
#pragma unroll
            for (int n = 0; n < kHiddenTiles; ++n)
              mma<Element>(sums[m][4 * kColumns + n], a[m], c[n / 2][n % 2 * 2], c[n / 2][n % 2 * 2 + 1]);
        }
        if (t == 0 && step == 0) copies();
      }
    }
  }

  // A piece of this warp's sums: eight channels of two pixels.
  AT_DEVICE static void take(float (&v)[2][kVector], const Sums& sums, int m, int column) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int e = 0; e < kVector; ++e) v[half][e] = sums[m][4 * column + e / 2][2 * half + e % 2];
  }

  // The pieces that this slice finishes, every kSlices-th: all slices' sums in one order.
  AT_DEVICE static void exchange(const Part& part, const Sums& sums, float (&own)[kOwn][2][kVector], char* shared) {
    __syncthreads();  // nobody reads operands any more
    float4* memory = (float4*)shared + (threadIdx.x / 32 % kWarps * kPieces * 4) * 32 + part.lane;
    constexpr int kSlice = kWarps * kPieces * 4 * 32;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      float v[2][kVector];
      take(v, sums, i / kColumns, i % kColumns);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        memory[part.slice * kSlice + (4 * i + j) * 32] =
            make_float4(v[j / 2][j % 2 * 4], v[j / 2][j % 2 * 4 + 1], v[j / 2][j % 2 * 4 + 2], v[j / 2][j % 2 * 4 + 3]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float4 total = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice) {
          const float4 other = memory[slice * kSlice + (4 * (i * kSlices + part.slice) + j) * 32];
          total.x += other.x, total.y += other.y, total.z += other.z, total.w += other.w;
        }
        float* to = own[i][j / 2] + j % 2 * 4;
        to[0] = total.x, to[1] = total.y, to[2] = total.z, to[3] = total.w;
      }
  }

  // A pixel of the tile as one of the output, or -1.
  AT_DEVICE static int output_pixel(const Params& x, const Place& at, int m) {
    const int image = over(m, x.by_tile), rest = m - image * x.tile_p * x.tile_q, row = over(rest, x.by_q);
    const int n = at.image + image, p = at.row + row, q = at.column + rest - row * x.tile_q;
    const bool there = image < x.images && n < x.a.n && p < x.a.p && q < x.a.q;
    return there ? (n * x.a.p + p) * x.a.q + q : -1;
  }

  AT_DEVICE static void finish(const Params& x, const Place& at, const Part& part, const Sums& sums, char* shared) {
    const Problem& a = x.a;
    float own[kOwn][2][kVector];
    if constexpr (kSlices > 1) {
      exchange(part, sums, own, shared);
    } else {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) take(own[i], sums, i / kColumns, i % kColumns);
    }
    int block[kOwn], column[kOwn], pixels[kOwn][2];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int piece = i * kSlices + (kSlices > 1 ? part.slice : 0);
      block[i] = part.m / 16 + piece / kColumns, column[i] = part.n + piece % kColumns * 32 + part.lane % 4 * kVector;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        pixels[i][half] = output_pixel(x, at, block[i] * 16 + 8 * half + part.lane / 4);
        if (at.channel + column[i] >= a.k) pixels[i][half] = -1;
      }
    }
    constexpr int kEarly = kOwn < 2 ? kOwn : 2;
    typename Config::Steps::Fetched fetched[kEarly][2];
    const auto fetch = [&](int i) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (pixels[i][half] >= 0)
          Config::Steps::fetch(fetched[i % kEarly][half], x.p.p, (int64_t)pixels[i][half] * a.k + at.channel + column[i]);
    };
#pragma unroll
    for (int i = 0; i < kEarly; ++i) fetch(i);
    if constexpr (kGated || kFolded) apply_before(x, at, own, column);
    if constexpr (kGated) scale(x, part, own, block, column, shared + x.gate_place);
    if constexpr (kFolded) scale_folded(x, part, sums, own, column, shared);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (pixels[i][half] < 0) continue;
        const int channel = at.channel + column[i];
        const int64_t offset = (int64_t)pixels[i][half] * a.k + channel;
        Config::Steps::apply(own[i][half], x.p.p, a.scalars, channel, offset, fetched[i % kEarly][half]);
        store(own[i][half], (Element*)x.p.p[kY] + offset);
      }
      if (i + kEarly < kOwn) fetch(i + kEarly);
    }
  }

  // The steps before a gate.
  AT_DEVICE static void apply_before(const Params& x, const Place& at, float (&own)[kOwn][2][kVector],
                                     const int (&column)[kOwn]) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (at.channel + column[i] < x.a.k) Config::Steps::before(own[i][half], x.p.p, x.a.scalars, at.channel + column[i]);
  }

  AT_DEVICE static Folded folded(const Params& x, char* shared) {
    return {x.a.p * x.a.q, x.hidden, x.pixel_weight, x.slabs, shared + x.gate_place};
  }

  // The gate with a folded squeeze. Slices have added up their channels' share of the hidden values.
  AT_DEVICE static void scale_folded(const Params& x, const Part& part, const Sums& sums, float (&own)[kOwn][2][kVector],
                                     const int (&column)[kOwn], char* shared) {
    float2 total[kBlocks][kHiddenTiles];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int j = 0; j < kHiddenTiles; ++j) {
        const float(&v)[4] = sums[m][4 * kColumns + j];
        total[m][j] = make_float2(v[0] + v[2], v[1] + v[3]);
      }
    const int warp = hopper::uniform(threadIdx.x / 32);
    if constexpr (kSlices > 1) {
      float2* memory = (float2*)(shared + kSlices * kM * kN * 4) + (warp % kWarps) * kBlocks * kHiddenTiles * 32 + part.lane;
      constexpr int kSlice = kWarps * kBlocks * kHiddenTiles * 32;
#pragma unroll
      for (int i = 0; i < kBlocks * kHiddenTiles; ++i) memory[part.slice * kSlice + i * 32] = total[i / kHiddenTiles][i % kHiddenTiles];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kBlocks * kHiddenTiles; ++i) {
        float2 sum = {0.f, 0.f};
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice) {
          const float2 other = memory[slice * kSlice + i * 32];
          sum.x += other.x, sum.y += other.y;
        }
        total[i / kHiddenTiles][i % kHiddenTiles] = sum;
      }
    }
    wait_for_all_copies();
    folded(x, shared).each_block(total, warp, part.m / 16, 1, part.n == 0 && part.slice == 0, [] { __syncthreads(); },
                                 [&](int m, const float* gates) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int piece = i * kSlices + (kSlices > 1 ? part.slice : 0);
        if (piece / kColumns != m) continue;
        float factor[kVector];
        load(factor, gates + column[i]);
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int e = 0; e < kVector; ++e) own[i][half][e] *= factor[e];
      }
    });
  }

  // The gate from the sums themselves.
  AT_DEVICE static void scale(const Params& x, const Part& part, float (&own)[kOwn][2][kVector],
                              const int (&block)[kOwn], const int (&column)[kOwn], char* memory) {
    const Excitation gate(x.a.p * x.a.q, x.hidden);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float v[2][kVector];
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int e = 0; e < kVector; ++e) v[half][e] = own[i][half][e];
      gate.collect(v, memory, block[i], column[i]);
    }
    gate.excite(memory, 0, x.a.k, 0, 0, [](int peer) { return peer; });
    const float* gates = (const float*)(memory + gate.mean());
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float factor[kVector];
        load(factor, gates + over(block[i] * 16 + 8 * half + part.lane / 4, x.by_tile) * kN + column[i]);
#pragma unroll
        for (int e = 0; e < kVector; ++e) own[i][half][e] *= factor[e];
      }
  }

  // ---- A block's inner values ----

  AT_DEVICE static void clear(uint32_t patch, int bytes) {
    for (int i = 16 * threadIdx.x; i < bytes; i += 16 * kThreads) hopper::write(patch + i, make_uint4(0, 0, 0, 0));
  }

  // The first convolution's sums -> the second's patch, whose border stays as it was cleared; and the sums begin anew.
  AT_DEVICE static void keep_inner(const Params& x, const Part& part, Sums& sums, uint32_t patch) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      float v[2][kVector];
      take(v, sums, i / kColumns, i % kColumns);
      const int channel = part.n + i % kColumns * 32 + part.lane % 4 * kVector;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Pixel own(x, part.m + i / kColumns * 16 + 8 * half + part.lane / 4);
        const int h = own.row + x.a.pad_h, w = own.column + x.a.pad_w;
        if (own.image >= x.images || channel >= x.a.k) continue;
        Config::Steps::inner(v[half], x.p.p, x.a.scalars, channel);
        const int pixel = (own.image * x.patch_h + h) * x.patch_w + w, key = (own.image * x.tile_p + h) * x.tile_q + w & 7;
        hopper::write(patch + pixel * kRowBytes + ((channel / kVector ^ key) << 4), rounded<Element>(v[half]).words[0]);
      }
    }
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int n = 0; n < 4 * kColumns; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[m][n][e] = 0.f;
  }

  AT_DEVICE static void run(const Params& x, char* shared) {
    const Place at(x);
    const Part part;
    const Copier copier(x);
    const uint32_t memory = hopper::shared_address(shared), ring = memory + x.patches * x.patch_bytes;

    Weights weights(x, at, ring);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) weights.load_step(x);
    if constexpr (kGated)
      Excitation(x.a.p * x.a.q, x.hidden).load_weights(shared + x.gate_place, x.p.p + kFirstGate, 0, x.a.k, threadIdx.x);
    if constexpr (kFolded) folded(x, shared).load_weights(x.p.p + kFirstGate + 1, at.channel, x.a.k, threadIdx.x);
    if constexpr (kBlock) clear(memory + x.patch_bytes, x.patch_bytes);
    wait_for_previous();
    load_patch(x, at, copier, 0, memory);
    commit_copies();
    if constexpr (!kBlock)
      for (int i = 1; i < x.patches; ++i) load_patch(x, at, copier, i, memory + i * x.patch_bytes);
    commit_copies();

    int pixels[kBlocks];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const Pixel own(x, part.m + 16 * m + part.lane % 16);
      const int place = (own.image * x.patch_h + own.row * x.a.stride_h) * x.patch_w + own.column * x.a.stride_w;
      pixels[m] = own.image < x.images ? place * kRowBytes : 0;
    }

    Sums sums = {};
    int chunk = 0, tap = 0, slot = 0, patch = 0;  // of this step; its buffers
    for (int step = 0; step < x.steps; ++step) {
      if (step == 0) wait_for_copies<1>();
      else wait_for_copies<kStages - 2>();
      __syncthreads();
      multiply(x, part, pixels, memory + patch * x.patch_bytes, ring + slot * kStageBytes, tap, sums, [&] {
        weights.load_step(x);
        if (!kBlock && tap == 0 && chunk > 0 && chunk + x.patches - 1 < x.chunks) {  // nobody reads the last chunk's patch any more
          const int freed = patch == 0 ? x.patches - 1 : patch - 1;
          load_patch(x, at, copier, chunk + x.patches - 1, memory + freed * x.patch_bytes);
        }
        commit_copies();
      });
      if (++slot == kStages) slot = 0;
      if ((tap += kTaps) == x.taps) {
        tap = 0, ++chunk;
        if (++patch == x.patches) patch = 0;
        if constexpr (kBlock)
          if (chunk == 1) keep_inner(x, part, sums, memory + x.patch_bytes);
      }
    }
    launch_next();
    finish(x, at, part, sums, shared);
  }
};

}  // namespace at
