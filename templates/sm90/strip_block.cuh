// A network's first layer and the residual block behind it in one kernel, as in block.cuh, with the products turned round:
// rows are output channels, all 64 of them, and columns are the pixels of a strip of the image, eight wide and as high as
// the image. A warpgroup has a strip.
//
// So a product reads 64 rows of filters and 128 pixels (of 16 lines) where block.cuh's reads 64 and 64: of what shared memory
// gives in that time, three quarters instead of all. And a thread has two channels of many pixels: it adds up their mean by
// itself, finds their gate by itself, and a step's vectors are two numbers. The image is written to shared memory by matrices
// of 8 x 8, transposed (stmatrix).
#pragma once
#include "cuda/copies.cuh"
#include "sm90/block_stem.cuh"
#include "sm90/hopper.cuh"

namespace at {

template <typename Config>
struct HopperStripBlock {
  using Element = typename Config::Element;
  static constexpr int kChannels = 64, kRowBytes = kChannels * (int)sizeof(Element);
  static constexpr int kH = Config::kH, kW = Config::kW, kPixels = kH * kW;  // of the block's image
  static constexpr int kImage = Config::kImage;                             // channels of the network's
  static constexpr int kCluster = Config::kCluster;
  static constexpr int kStrips = kW / 8, kN = 8 * kH, kWarps = 4 * kStrips, kThreads = 32 * kWarps;
  static constexpr int kTaps = 9, kTapBytes = kChannels * kRowBytes;
  static constexpr int kPatchW = kW + 2, kPatchBytes = (kH + 2) * kPatchW * kRowBytes;
  static constexpr int kSide = 4, kStepBytes = kChannels * kSide * kSide * (int)sizeof(Element);  // of the stem's weights
  static constexpr int kLineBytes = kN * kSide * kSide * (int)sizeof(Element);  // of a strip's patches, of one channel
  static constexpr int kLines = kSide * kH * kW / kThreads;                     // of four pixels that a thread reads
  enum { kX, kStemWeight, kWeight, kFirstGate = kWeight + 2, kY = kFirstGate + 4 };
  enum Launch { kGrid, kEarlyTaps, kChannelsLast };
  static_assert(kH % 2 == 0 && kH <= 32 && kW % 8 == 0 && kSide * kH * kW % kThreads == 0, "no such image");

  struct alignas(64) Params {
    uint8_t stem_map[128], weight_maps[2][128];
    int tiles, hidden, early_taps;
    StemImage image;
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  AT_DEVICE static void prepare(const at_stem_se_block& a, at_prepared* out) {
    Params x{};
    if (a.c != kImage || a.k != kChannels || a.block != kSide || a.h != kSide * kH || a.w != kSide * kW || a.hidden % 4)
      return refused(out);
    x.tiles = a.n, x.hidden = a.hidden, x.early_taps = min(a.launch[kEarlyTaps], 2 * kTaps);
    x.image = stem_image(a.n, a.h, a.w, a.c, a.launch[kChannelsLast]);
    for (int i = 0; i < AT_MAX_SCALARS; ++i) x.scalars[i] = a.scalars[i];
    const int shared = 1024 + Layout(x, 0).end;
    if (shared > 232448) return refused(out);
    const int blocks = a.launch[kGrid] ? min(x.tiles, a.launch[kGrid]) : x.tiles;
    prepared(out, x, ceil_div(blocks, kCluster) * kCluster, 1, 1, kThreads, shared, 0);

    const uint64_t c = kChannels;
    out->tensor_map_count = 3;
    out->tensor_maps[0] = {0, kStemWeight, Config::kMapElement, hopper::swizzle_of(32)};
    hopper::describe<Element>(out->tensor_maps[0], {16, kImage, c}, {16, 1, kChannels}, {1, 1, 1});
    for (int i = 0; i < 2; ++i) {
      out->tensor_maps[1 + i] = {128 + 128 * i, kWeight + i, Config::kMapElement, hopper::swizzle_of(kRowBytes)};
      hopper::describe<Element>(out->tensor_maps[1 + i], {c, kTaps, c}, {kChannels, 1, kChannels / kCluster}, {1, 1, 1});
    }
  }

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& x, char* memory) {
    const Layout at(x, hopper::shared_address(memory));
    if (hopper::uniform(threadIdx.x / 32) == 0) hopper::init_barriers(at.full, 1 + 2 * kTaps, 1);
    hopper::publish_barriers();
    hopper::sync_all<kCluster>();
    solve_all(x, at);
  }

 private:
  // Addresses in shared memory. Barriers: of the stem's weights, then of every tap.
  struct Layout {
    uint32_t weights, patch, lines, stem, sums, w1, b2, b1, w2, full, end;
    AT_DEVICE Layout(const Params& x, uint32_t memory) {
      weights = (memory + 1023) / 1024 * 1024;
      patch = weights + 2 * kTaps * kTapBytes;
      lines = patch + ceil_div(kPatchBytes, 256) * 256;
      stem = lines + kImage * kStrips * kLineBytes;
      sums = stem + kImage * kStepBytes;
      w1 = sums + kStrips * kChannels * 4;
      b2 = w1 + x.hidden * kRowBytes;
      b1 = b2 + kChannels * 4;
      w2 = b1 + x.hidden * 4;
      full = w2 + x.hidden * kRowBytes;
      end = full + 8 * (1 + 2 * kTaps);
    }
  };

  // What a thread has: of its warpgroup's strip, channels `channel` and `channel + 8`, columns 2 (lane % 4) and the next of
  // every line.
  struct Part {
    int strip, warp, lane, channel;
    AT_DEVICE Part() {
      const int all = hopper::uniform(threadIdx.x / 32);
      strip = all / 4, warp = all % 4, lane = threadIdx.x % 32, channel = 16 * warp + lane / 4;
    }
  };

  using Sums = float[1][kN / 2];  // of line j, channel `half`, column e: 4 j + 2 half + e
  using Kept = uint32_t[kN / 4];  // pairs of columns, rounded

  // ---- Loads ----

  AT_DEVICE static void load_tap(const Params& x, const Layout& at, int i) {
    constexpr int kRows = kChannels / kCluster;
    const int first = kCluster > 1 ? (int)hopper::rank_in_cluster() * kRows : 0;
    const uint32_t full = at.full + 8 + 8 * i;
    hopper::expect_bytes(full, kTapBytes);
    hopper::load_3d<(kCluster > 1)>(at.weights + i * kTapBytes + first * kRowBytes, x.weight_maps[i / kTaps], full, 0,
                                    i % kTaps, first, (1 << kCluster) - 1);
  }

  // Each warp its share of the taps from `begin` to `end`.
  AT_DEVICE static void load_share(const Params& x, const Layout& at, int begin, int end) {
    const int warp = hopper::uniform(threadIdx.x / 32);
    if (hopper::elect())
      for (int i = warp; i < end; i += kWarps)
        if (i >= begin) load_tap(x, at, i);
    __syncwarp();
  }

  AT_DEVICE static void load_stem(const Params& x, const Layout& at) {
    hopper::expect_bytes(at.full, kImage * kStepBytes);
    for (int c = 0; c < kImage; ++c)
      hopper::load_3d<false>(at.stem + c * kStepBytes, x.stem_map, at.full, 0, c, 0, 0);
  }

  // A block must not end while others of the cluster still load into it.
  AT_DEVICE static void wait_for_taps(const Layout& at) {
    if constexpr (kCluster > 1)
      for (int i = 0; i < 2 * kTaps; ++i) hopper::wait(at.full + 8 + 8 * i, 0);
  }

  AT_DEVICE static void load_gate(const Params& x, const Layout& at) {
    void* const* p = x.p.p + kFirstGate;
    for (int i = threadIdx.x; i < x.hidden * kRowBytes / 16; i += kThreads) {
      copy_async<16>(at.w1 + 16 * i, (const char*)p[0] + 16 * i);
      copy_async<16>(at.w2 + 16 * i, (const char*)p[2] + 16 * i);
    }
    for (int i = threadIdx.x; i < x.hidden / 4; i += kThreads) copy_async<16>(at.b1 + 16 * i, (const char*)p[1] + 16 * i);
    for (int i = threadIdx.x; i < kChannels / 4; i += kThreads) copy_async<16>(at.b2 + 16 * i, (const char*)p[3] + 16 * i);
  }

  // ---- The image: lines of four pixels, which are a quarter of a row of the stem's second operand ----

  using Lines = Pack<Element, kSide>[kLines][kImage];

  AT_DEVICE static void read(const Params& x, int tile, Lines& lines) {
    if (x.image.channels_last()) read<true>(x, tile, lines);
    else read<false>(x, tile, lines);
  }

  template <bool kLast>
  AT_DEVICE static void read(const Params& x, int tile, Lines& lines) {
    const Element* image = (const Element*)x.p.p[kX] + (int64_t)tile * x.image.of_image;
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const int number = i * kThreads + threadIdx.x, row = number / kW, column = number % kW;
      const Element* at = image + row * x.image.of_row + kSide * column * x.image.of_pixel;
      if constexpr (kLast) {
        Pack<Element, kSide * kImage> pixels;
        pixels.read(at);
#pragma unroll
        for (int c = 0; c < kImage; ++c)
#pragma unroll
          for (int e = 0; e < kSide; ++e) lines[i][c].elements[e] = pixels.elements[e * kImage + c];
      } else {
#pragma unroll
        for (int c = 0; c < kImage; ++c) lines[i][c].read(at + c * x.image.of_channel);
      }
    }
  }

  AT_DEVICE static void write_lines(const Layout& at, const Lines& lines) {
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const int number = i * kThreads + threadIdx.x, row = number / kW, column = number % kW;
      const int strip = column / 8, pixel = column % 8, line = row % kSide;
      const uint32_t to = at.lines + strip * kLineBytes + (row / kSide * 8 + pixel) * 32 + (line / 2 ^ pixel / 4) * 16 + line % 2 * 8;
#pragma unroll
      for (int c = 0; c < kImage; ++c) hopper::write(to + c * kStrips * kLineBytes, lines[i][c].words[0]);
    }
  }

  // ---- Products, and what follows them ----

  AT_DEVICE static void solve_all(const Params& x, const Layout& at) {
    const bool idle = (int)blockIdx.x >= x.tiles;  // it fills up a cluster
    if (threadIdx.x == 0 && !idle) load_stem(x, at);
    load_share(x, at, 0, idle ? 2 * kTaps : x.early_taps);
    if (idle) return wait_for_taps(at);
    const Part part;
    Lines lines;
    wait_for_previous();
    read(x, blockIdx.x, lines);
    load_share(x, at, x.early_taps, 2 * kTaps);  // not sooner, because the first products wait for the image
    load_gate(x, at);
    for (int i = threadIdx.x; i < kPatchBytes / 16; i += kThreads) hopper::write(at.patch + 16 * i, make_uint4(0, 0, 0, 0));
    wait_for_all_copies();
    for (int tile = blockIdx.x; tile < x.tiles; tile += gridDim.x) {
      const bool last = tile + (int)gridDim.x >= x.tiles;
      Sums sums;
      Kept kept;
      write_lines(at, lines);
      publish();  // and nothing of the tile before is needed any more
      multiply_stem(at, part, sums);
      if (!last) read(x, tile + gridDim.x, lines);
      write_patch(at, part, sums, [&](float (&v)[2], int number, int channel) {
        Config::Steps::kept(v, x.p.p, x.scalars, channel);
        kept[number] = pair(v[0], v[1]);
        Config::Steps::biased(v, x.p.p, x.scalars, channel);
      });
      publish();
      convolve(at, part, 0, sums);
      __syncthreads();  // nothing reads the image any more
      write_patch(at, part, sums, [&](float (&v)[2], int, int channel) {
        Config::Steps::inner(v, x.p.p, x.scalars, channel);
      });
      publish();
      convolve(at, part, 1, sums);
      if (last) launch_next();
      float gates[2];
      excite(x, at, part, sums, gates);
      write_patch(at, part, sums, [&](float (&v)[2], int number, int channel) {
        const float gate = gates[number % 2];
#pragma unroll
        for (int e = 0; e < 2; ++e) v[e] *= gate;
        Config::Steps::gated(v, x.p.p, x.scalars, channel);
        Pack<Element, 2> identity;
        identity.words[0] = kept[number];
#pragma unroll
        for (int e = 0; e < 2; ++e) v[e] += to_float(identity.elements[e]);
        Config::Steps::after(v, x.p.p, x.scalars, channel);
      });
      __syncthreads();
      store_patch(x, at, tile);
    }
  }

  // Makes what all have written visible to products.
  AT_DEVICE static void publish() {
    hopper::publish_shared();
    __syncthreads();
  }

  AT_DEVICE static uint32_t pair(float a, float b) {
    Pack<Element, 2> both;
    from_floats(both.elements, a, b);
    return both.words[0];
  }

  AT_DEVICE static void multiply_stem(const Layout& at, const Part& part, Sums& sums) {
    const uint32_t high = hopper::high<32>(8 * 32);
    const uint32_t a = hopper::low(at.stem), b = hopper::low(at.lines + part.strip * kLineBytes);
    hopper::wait(at.full, 0);
    hopper::pin(sums);
    hopper::begin_products();
#pragma unroll
    for (int c = 0; c < kImage; ++c)
      Config::multiply(sums[0], hopper::descriptor(a + c * (kStepBytes / 16), high),
                       hopper::descriptor(b + c * (kStrips * kLineBytes / 16), high), c > 0);
    hopper::commit_products();
    hopper::wait_for_products<0>();
    hopper::pin(sums);
  }

  // The sums of convolution `which` of what lies in the patch.
  AT_DEVICE static void convolve(const Layout& at, const Part& part, int which, Sums& sums) {
    const uint32_t a_high = hopper::high<kRowBytes>(8 * kRowBytes), b_high = hopper::high<kRowBytes>(kPatchW * kRowBytes);
    uint32_t line = hopper::low(at.patch + part.strip * 8 * kRowBytes), a = hopper::low(at.weights + which * kTaps * kTapBytes);
    uint32_t full = at.full + 8 + 8 * which * kTaps;
    int accumulate = 0;
    hopper::pin(sums);
#pragma unroll 1
    for (int r = 0; r < 3; ++r, line += kPatchW * (kRowBytes / 16)) {
      uint32_t tap = line;
      for (int s = 0; s < 3; ++s, tap += kRowBytes / 16, a += kTapBytes / 16, full += 8) {
        hopper::wait(full, 0);  // which is over at once after the first tile
        hopper::begin_products();
#pragma unroll
        for (int k = 0; k < kChannels / 16; ++k) {
          Config::multiply(sums[0], hopper::descriptor(a + 2 * k, a_high), hopper::descriptor(tap + 2 * k, b_high), accumulate);
          accumulate = 1;
        }
        hopper::commit_products();
      }
    }
    hopper::wait_for_products<0>();
    hopper::pin(sums);
  }

  // What steps(v, number, channel) make of the sums, over the image's pixels, for all. v: two columns; number: 2 line + half.
  template <typename Steps>
  AT_DEVICE static void write_patch(const Layout& at, const Part& part, const Sums& sums, const Steps& steps) {
    // A lane names the row of a matrix: a pixel of a line, and eight channels of it.
    const int matrix = part.lane / 8, chunk = 2 * part.warp + matrix % 2;
    const int first = (matrix / 2 + 1) * kPatchW + part.strip * 8 + part.lane % 8 + 1;  // of the patch's pixels
#pragma unroll
    for (int j = 0; j < kH; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int number = 2 * j + i;
        float v[2] = {sums[0][2 * number], sums[0][2 * number + 1]};
        steps(v, number, part.channel + 8 * (number % 2));
        words[i] = pair(v[0], v[1]);
      }
      const int place = first + j * kPatchW;
      hopper::store_matrices(at.patch + place * kRowBytes + (chunk ^ place % 8) * 16, words);
    }
  }

  // Applies the steps before the gate to the sums, and finds the gates of this thread's two channels.
  AT_DEVICE static void excite(const Params& x, const Layout& at, const Part& part, Sums& sums, float (&gates)[2]) {
    float total[2] = {};
#pragma unroll
    for (int number = 0; number < kN / 4; ++number) {
      float v[2] = {sums[0][2 * number], sums[0][2 * number + 1]};
      Config::Steps::before(v, x.p.p, x.scalars, part.channel + 8 * (number % 2));
      sums[0][2 * number] = v[0], sums[0][2 * number + 1] = v[1];
      total[number % 2] += v[0] + v[1];
    }
    float* all = (float*)__cvta_shared_to_generic(at.sums);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(0xffffffffu, total[half], 1);
      total[half] += __shfl_xor_sync(0xffffffffu, total[half], 2);
      if (part.lane % 4 == 0) all[part.strip * kChannels + part.channel + 8 * half] = total[half];
    }
    __syncthreads();  // and nothing reads the patch any more
    const Element *w1 = (const Element*)__cvta_shared_to_generic(at.w1), *w2 = (const Element*)__cvta_shared_to_generic(at.w2);
    const float *b1 = (const float*)__cvta_shared_to_generic(at.b1), *b2 = (const float*)__cvta_shared_to_generic(at.b2);
    float means[2] = {};
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip)
#pragma unroll
      for (int e = 0; e < 2; ++e) means[e] += all[strip * kChannels + 2 * part.lane + e];
    gates[0] = b2[part.channel], gates[1] = b2[part.channel + 8];
#pragma unroll 1
    for (int o = 0; o < x.hidden; o += 4) {  // each warp all of it: no barrier more
      float sum[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float w[2];
        load(w, w1 + (o + i) * kChannels + 2 * part.lane);
        sum[i] = (w[0] * means[0] + w[1] * means[1]) * (1.f / kPixels);
      }
#pragma unroll
      for (int distance = 16; distance; distance /= 2)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], distance);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float w[4];
        load(w, w2 + (part.channel + 8 * half) * x.hidden + o);
#pragma unroll
        for (int i = 0; i < 4; ++i) gates[half] += w[i] * at_least_zero(sum[i] + b1[o + i]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) gates[half] = logistic(gates[half]);
  }

  AT_DEVICE static void store_patch(const Params& x, const Layout& at, int tile) {
    constexpr int kVectors = kRowBytes / 16;
    Element* y = (Element*)x.p.p[kY] + (int64_t)tile * kPixels * kChannels;
#pragma unroll
    for (int i = 0; i < kPixels * kVectors / kThreads; ++i) {
      const int number = i * kThreads + threadIdx.x, pixel = number / kVectors, chunk = number % kVectors;
      const int place = (pixel / kW + 1) * kPatchW + pixel % kW + 1;
      const uint4 v = hopper::read(at.patch + place * kRowBytes + (chunk ^ place % 8) * 16);
      *((uint4*)y + number) = v;
    }
  }
};

}  // namespace at
