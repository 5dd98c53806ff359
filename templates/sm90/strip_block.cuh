// A network's first layer and the residual block behind it in one kernel, as in block.cuh, with the products turned round:
// rows are output channels, all 64 of them, and columns are the pixels of a strip of the image, eight wide and as high as
// the image. A warpgroup has a strip.
//
// So a product reads 64 rows of filters and 128 pixels (of 16 lines) where block.cuh's reads 64 and 64: of what shared memory
// gives in that time, three quarters instead of all. And a thread has two channels of many pixels: it adds up their mean by
// itself, finds their gate by itself, and a step's vectors are two numbers. The image is written to shared memory by matrices
// of 8 x 8, transposed (stmatrix), and leaves it by TMA.
//
// A warp that has begun a product waits until the one before is over. So what can be done beside a convolution stands between
// its products, at one place in every other strip and at another in the rest: those multiply meanwhile. There the next image
// is read, and its patches written; its stem is multiplied behind the second convolution, while this image's gates are found.
//
// With a pool behind it (kPooled) a second output is the mean of the image's 3x3 pixels, two apart. Three warps that multiply
// nothing read an image back while the next one's products run; the last image's is found by all others, where it lies.
// strip_plan.cuh has what comes before the launch.
#pragma once
#include "cuda/copies.cuh"
#include "sm90/pool_image.cuh"
#include "sm90/strip_plan.cuh"

namespace at {

template <typename Config>
struct HopperStripBlock : StripPlan<Config> {
  using Plan = StripPlan<Config>;
  using typename Plan::Element, typename Plan::Layout, typename Plan::Params, typename Plan::Part;
  using Plan::kAll, Plan::kBarriers, Plan::kChannels, Plan::kCluster, Plan::kFirstGate, Plan::kGiven, Plan::kH, Plan::kImage;
  using Plan::kLineBytes, Plan::kLines, Plan::kLoads, Plan::kMoves, Plan::kN, Plan::kPatchW, Plan::kPixels, Plan::kPool;
  using Plan::kPoolThreads, Plan::kPooled, Plan::kReady, Plan::kReadyThreads, Plan::kRowBytes, Plan::kSide, Plan::kStepBytes;
  using Plan::kStrip, Plan::kStripThreads, Plan::kStrips, Plan::kTaken, Plan::kTapBytes, Plan::kTaps, Plan::kThreads;
  using Plan::kVectors, Plan::kW, Plan::kWarps, Plan::kX, Plan::kY;

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& x, char* memory) {
    const Layout at(x, hopper::shared_address(memory));
    const int warp = hopper::uniform(threadIdx.x / 32);
    if (warp == kWarps) {
      hopper::init_barriers(at.full, kBarriers, 1);
      hopper::publish_barriers();
    }
    if constexpr (kCluster > 1) hopper::sync_cluster();  // before a block loads into another's memory
    const bool idle = (int)blockIdx.x >= x.tiles;  // it fills up a cluster
    if (warp >= kWarps) {
      if constexpr (kMoves) hopper::give_registers<kGiven>();
      if (warp == kWarps) load_all(x, at);
      if (warp == kWarps + 1 && !idle) write_zeros(at);
      if (warp == kWarps + 2 && !idle) load_gate(x, at);
      if constexpr (kPooled) {
        if (warp == kWarps + 3 && !idle) hopper::meet<kReady, kReadyThreads>();
        if (warp > kWarps && !idle) pool_all(x, at);
      }
    } else if (!idle) {
      if constexpr (kMoves) hopper::take_registers<kTaken>();
      solve_all(x, at);
    }
  }

 private:
  using Sums = float[1][kN / 2];  // of line j, channel `half`, column e: 4 j + 2 half + e
  using Kept = uint32_t[kN / 4];  // pairs of columns, rounded

  // ---- Loads ----

  AT_DEVICE static void load_stem(const Params& x, const Layout& at) {
    hopper::expect_bytes(at.full, kImage * kStepBytes);
    for (int c = 0; c < kImage; ++c)
      hopper::load_3d<false>(at.stem + c * kStepBytes, x.stem_map, at.full, 0, c, 0, 0);
  }

  AT_DEVICE static void load_tap(const Params& x, const Layout& at, int i) {
    constexpr int kRows = kChannels / kCluster;
    const int first = kCluster > 1 ? (int)hopper::rank_in_cluster() * kRows : 0;
    const uint32_t full = at.full + 8 + 8 * i;
    hopper::expect_bytes(full, kTapBytes);
    hopper::load_3d<(kCluster > 1)>(at.weights + i * kTapBytes + first * kRowBytes, x.weight_maps[i / kTaps], full, 0,
                                    i % kTaps, first, (1 << kCluster) - 1);
  }

  // The stem's weights, and taps.
  AT_DEVICE static void load_some(const Params& x, const Layout& at, int begin, int end) {
    if (hopper::elect())
      for (int i = begin; i < end; ++i) i ? load_tap(x, at, i - 1) : load_stem(x, at);
    __syncwarp();
  }

  // ---- What three warps do that do nothing else: to ask for so much takes longer than the first image takes to come ----

  AT_DEVICE static void load_all(const Params& x, const Layout& at) {
    hopper::arrive_at_meeting<kReady, kReadyThreads>();
    load_some(x, at, 0, x.early_loads);
    wait_for_previous();
    load_some(x, at, x.early_loads, kLoads);
    if constexpr (kCluster > 1)  // a block must not end while others still load into it
      for (int i = 0; i < kLoads; ++i) hopper::wait(at.full + 8 * i, 0);
  }

  AT_DEVICE static void write_zeros(const Layout& at) {
    const int lane = threadIdx.x % 32;
    hopper::meet<kReady, kReadyThreads>();
    for (int i = lane; i < kHalo * kVectors; i += 32)
      hopper::write(at.patch + halo(i / kVectors) * kRowBytes + i % kVectors * 16, make_uint4(0, 0, 0, 0));
    hopper::publish_shared();
    __syncwarp();
    if (lane == 0) hopper::arrive(at.zeros);
  }

  AT_DEVICE static void load_gate(const Params& x, const Layout& at) {
    const int lane = threadIdx.x % 32;
    void* const* p = x.p.p + kFirstGate;
    hopper::meet<kReady, kReadyThreads>();
    for (int i = lane; i < x.hidden * kVectors; i += 32) {
      copy_async<16>(at.w1 + 16 * i, (const char*)p[0] + 16 * i);
      copy_async<16>(at.w2 + 16 * i, (const char*)p[2] + 16 * i);
    }
    for (int i = lane; i < x.hidden / 4; i += 32) copy_async<16>(at.b1 + 16 * i, (const char*)p[1] + 16 * i);
    for (int i = lane; i < kChannels / 4; i += 32) copy_async<16>(at.b2 + 16 * i, (const char*)p[3] + 16 * i);
    wait_for_all_copies();
    __syncwarp();
    if (lane == 0) hopper::arrive(at.gate);
  }

  // Pixels of the patch around the image: two lines, then two columns.
  static constexpr int kHalo = 2 * kPatchW + 2 * kH;
  AT_DEVICE static int halo(int i) {
    if (i < 2 * kPatchW) return i < kPatchW ? i : i + kH * kPatchW;
    i -= 2 * kPatchW;
    return (i / 2 + 1) * kPatchW + i % 2 * (kPatchW - 1);
  }

  // ---- The image: lines of four pixels, which are a quarter of a row of the stem's second operand ----

  using Lines = Pack<Element, kSide>[kLines][kImage];

  AT_DEVICE static void read(const Params& x, const Part& part, int tile, Lines& lines) {
    if (x.channels_last) read<true>(x, part, tile, lines);
    else read<false>(x, part, tile, lines);
  }

  template <bool kLast>
  AT_DEVICE static void read(const Params& x, const Part& part, int tile, Lines& lines) {
    constexpr int kRows = kSide * kH, kOfPixel = kLast ? kImage : 1, kOfRow = kSide * kW * kOfPixel;
    const Element* line = (const Element*)x.p.p[kX] + (int64_t)tile * (kRows * kSide * kW * kImage) +
                          part.thread / 8 * kOfRow + (part.strip * 8 + part.thread % 8) * kSide * kOfPixel;
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const Element* at = line + i * (kStripThreads / 8) * kOfRow;
      if constexpr (kLast) {
        Pack<Element, kSide * kImage> pixels;
        pixels.read(at);
#pragma unroll
        for (int c = 0; c < kImage; ++c)
#pragma unroll
          for (int e = 0; e < kSide; ++e) lines[i][c].elements[e] = pixels.elements[e * kImage + c];
      } else {
#pragma unroll
        for (int c = 0; c < kImage; ++c) lines[i][c].read(at + c * (kRows * kSide * kW));
      }
    }
  }

  // And makes them visible to the strip's products.
  AT_DEVICE static void write_lines(const Layout& at, const Part& part, const Lines& lines) {
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const int number = i * kStripThreads + part.thread, row = number / 8, pixel = number % 8, line = row % kSide;
      const uint32_t to = at.lines + part.strip * kLineBytes + (row / kSide * 8 + pixel) * 32 + (line / 2 ^ pixel / 4) * 16 + line % 2 * 8;
#pragma unroll
      for (int c = 0; c < kImage; ++c) hopper::write(to + c * kStrips * kLineBytes, lines[i][c].words[0]);
    }
    hopper::publish_shared();
    hopper::meet_in<kStripThreads>(kStrip + part.strip);
  }

  // ---- The pool ----

  template <typename Read>
  AT_DEVICE static void pool(const Params& x, int tile, int thread, int threads, const Read& read) {
    pool_image<Element, kH, kW, kChannels>((Element*)x.p.p[kPooled] + (int64_t)tile * (kPixels / 4) * kChannels, thread, threads, read);
  }

  // What three warps do of all images but the block's last.
  AT_DEVICE static void pool_all(const Params& x, const Layout& at) {
    uint32_t parity = 0;
#pragma unroll 1
    for (int tile = blockIdx.x; tile + (int)gridDim.x < x.tiles; tile += gridDim.x, parity ^= 1) {
      hopper::wait(at.image, parity);
      const Element* from = (const Element*)x.p.p[kY] + (int64_t)tile * kPixels * kChannels;
      pool(x, tile, threadIdx.x - (kThreads + 32), kPoolThreads, [&](int line, int column, int vector, Pack<Element, 8>& to) {
        if (line >= 0 && column >= 0) to.read(from + (line * kW + column) * kChannels + vector * 8);
        else to.words[0] = make_uint4(0, 0, 0, 0);
      });
      hopper::meet<kPool, kPoolThreads>();
      if (threadIdx.x == kThreads + 32) hopper::arrive(at.pooled);
    }
  }

  // Tells them of an image, the number-th, that is in memory, once they are done with the one before.
  AT_DEVICE static void tell_pool(const Layout& at, const Part& part, int number) {
    if (part.strip == 0 && part.warp == 0 && hopper::elect()) {
      hopper::finish_stores();
      if (number > 0) hopper::wait(at.pooled, (number - 1) % 2);
      hopper::arrive(at.image);
    }
    __syncwarp();
  }

  // ---- Products, and what follows them ----

  AT_DEVICE static void solve_all(const Params& x, const Layout& at) {
    const Part part;
    Lines lines;
    Sums sums;
    wait_for_previous();
    read(x, part, blockIdx.x, lines);
    hopper::meet<kReady, kReadyThreads>();  // there are barriers
    write_lines(at, part, lines);
    begin_stem(at, part, sums);
    finish<0>(sums);
    const int half = 1 + part.strip % 2;  // of a convolution's lines of taps
    int told = 0;                         // images
    for (int tile = blockIdx.x; tile < x.tiles; tile += gridDim.x) {
      const bool last = tile + (int)gridDim.x >= x.tiles;
      Sums next;
      Kept kept;
      write_patch(at, part, sums, [&] { stored(part); meet(); }, [&](float (&v)[2], int number, int channel) {
        Config::Steps::kept(v, x.p.p, x.scalars, channel);
        kept[number] = pair(v[0], v[1]);
        Config::Steps::biased(v, x.p.p, x.scalars, channel);
      });
      publish();
      hopper::wait(at.zeros, 0);
      convolve(at, part, 0, 0, half, sums);
      if (!last) read(x, part, tile + gridDim.x, lines);  // while the other strips multiply
      convolve(at, part, 0, half, 3, sums);
      if constexpr (kPooled)
        if (tile != (int)blockIdx.x) tell_pool(at, part, told++);
      finish<0>(sums);
      write_patch(at, part, sums, [] { meet(); }, [&](float (&v)[2], int, int channel) {
        Config::Steps::inner(v, x.p.p, x.scalars, channel);
      });
      publish();
      convolve(at, part, 1, 0, half, sums);
      write_lines(at, part, lines);  // of the next image; after the last one this one's, for nobody
      convolve(at, part, 1, half, 3, sums);
      begin_stem(at, part, next);
      if (last) launch_next();
      finish<1>(sums);
      float gates[2];
      excite(x, at, part, sums, gates);
      write_patch(at, part, sums, [] {}, [&](float (&v)[2], int number, int channel) {
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
      publish();
      store(x, at, part, tile);
      if constexpr (kPooled)
        if (last)
          pool(x, tile, threadIdx.x, kThreads, [&](int line, int column, int vector, Pack<Element, 8>& to) {
            const int pixel = (line + 1) * kPatchW + column + 1;
            to.words[0] = hopper::read(at.patch + pixel * kRowBytes + (vector ^ pixel % 8) * 16);
          });
      finish<0>(next);
      hopper::move(next, sums);
    }
    stored(part);
  }

  // All threads that multiply.
  AT_DEVICE static void meet() { hopper::meet<kAll, kThreads>(); }

  // Makes what all have written visible to products.
  AT_DEVICE static void publish() {
    hopper::publish_shared();
    meet();
  }

  AT_DEVICE static uint32_t pair(float a, float b) {
    Pack<Element, 2> both;
    from_floats(both.elements, a, b);
    return both.words[0];
  }

  AT_DEVICE static void begin_stem(const Layout& at, const Part& part, Sums& sums) {
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
  }

  // Begins to sum up taps of the filters' lines from `begin` to `end`, of convolution `which` of what lies in the patch.
  AT_DEVICE static void convolve(const Layout& at, const Part& part, int which, int begin, int end, Sums& sums) {
    const uint32_t a_high = hopper::high<kRowBytes>(8 * kRowBytes), b_high = hopper::high<kRowBytes>(kPatchW * kRowBytes);
    uint32_t line = hopper::low(at.patch + (begin * kPatchW + part.strip * 8) * kRowBytes);
    const int first = which * kTaps + begin * 3;
    uint32_t a = hopper::low(at.weights + first * kTapBytes), full = at.full + 8 + 8 * first;
    int accumulate = begin > 0;
    hopper::pin(sums);
#pragma unroll 1
    for (int r = begin; r < end; ++r, line += kPatchW * (kRowBytes / 16)) {
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
  }

  // Until all products are done but those of the last `pending` groups.
  template <int pending>
  AT_DEVICE static void finish(Sums& sums) {
    hopper::wait_for_products<pending>();
    hopper::pin(sums);
  }

  // What steps(v, number, channel) make of the sums, over the image's pixels, for all, once ready() has returned. v: two
  // columns; number: 2 line + half.
  template <typename Ready, typename Steps>
  AT_DEVICE static void write_patch(const Layout& at, const Part& part, const Sums& sums, const Ready& ready,
                                    const Steps& steps) {
    uint32_t words[kH / 2][4];
#pragma unroll
    for (int number = 0; number < kN / 4; ++number) {
      float v[2] = {sums[0][2 * number], sums[0][2 * number + 1]};
      steps(v, number, part.channel + 8 * (number % 2));
      words[number / 4][number % 4] = pair(v[0], v[1]);
    }
    ready();
    // A lane names the row of a matrix: a pixel of a line, and eight channels of it.
    const int matrix = part.lane / 8, chunk = 2 * part.warp + matrix % 2;
    const int first = (matrix / 2 + 1) * kPatchW + part.strip * 8 + part.lane % 8 + 1;  // of the patch's pixels
    uint32_t rows[2];  // a row's place differs by no more than whole lines from that four lines before
#pragma unroll
    for (int i = 0; i < 2; ++i) rows[i] = at.patch + first * kRowBytes + (chunk ^ (first + 2 * i * kPatchW) % 8) * 16;
#pragma unroll
    for (int j = 0; j < kH / 2; ++j) hopper::store_matrices(rows[j % 2] + 2 * j * kPatchW * kRowBytes, words[j]);
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
    meet();  // and nothing reads the patch any more
    hopper::wait(at.gate, 0);
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

  // Begins to store the image, with the columns of zeros beside it, which are clipped.
  AT_DEVICE static void store(const Params& x, const Layout& at, const Part& part, int tile) {
    if (part.strip == 0 && part.warp == 0 && hopper::elect()) {
      hopper::store_4d(x.output_map, at.patch + (kPatchW + 1) * kRowBytes, 0, 0, 0, tile);
      hopper::commit_stores();
    }
    __syncwarp();  // for what a warp does in step
  }

  // Until the image has been read that is stored.
  AT_DEVICE static void stored(const Part& part) {
    if (part.strip == 0 && part.warp == 0 && hopper::elect()) hopper::wait_for_stores<0>();
    __syncwarp();
  }
};

}  // namespace at
