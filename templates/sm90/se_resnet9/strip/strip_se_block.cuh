// The stem of SE-ResNet9 and the residual block behind it in one kernel, with the product transposed: rows are the 64
// output channels, columns are the pixels of a strip of the image, eight wide and as high as the image. Each warpgroup
// has a strip.
//
// A product then reads 64 rows of filters and 128 pixels (16 lines) where one with pixels as rows reads 64 and 64:
// three quarters of the shared-memory bandwidth instead of all of it. A thread has two channels of many pixels, so it
// sums their mean and computes their gate by itself, and a step's vectors are two numbers. stmatrix writes the image to
// shared memory in transposed 8 x 8 matrices, and TMA stores it.
//
// A warp that has issued a product waits until the one before is complete. So other work is placed between a
// convolution's products, at one place in even strips and at another in odd ones, whose products run meanwhile: there
// the next image is read and its patches are written. Its stem is multiplied after the second convolution, while this
// image's gates are computed.
//
// With a pool behind the block (kPooled) the second output is the 3 x 3 mean with stride 2. Three warps that do not
// multiply read an image back and pool it while the next one's products run; the multiplying warps pool the last image
// from shared memory. plan.cuh has prepare().
#pragma once
#include "common/ptx/ptx.cuh"
#include "sm90/se_resnet9/strip/loads.cuh"
#include "sm90/se_resnet9/strip/plan.cuh"
#include "sm90/se_resnet9/strip/pool_image.cuh"

namespace at {

template <typename Config>
struct HopperStripBlock : StripPlan<Config> {
  using P = StripPlan<Config>;
  using Element = typename P::Element;
  using Layout = typename P::Layout;
  using Loads = StripLoads<Config>;
  using Params = typename P::Params;
  using WarpCoord = typename P::WarpCoord;

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& params, char* memory) {
    const Layout smem(params, align_smem(ptx::cast_smem_ptr_to_uint(memory)));
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    if (warp == P::kWarps) {
      ptx::mbarrier_init_array(smem.full, P::kBarriers, 1);
      ptx::fence_barrier_init();
    }
    if constexpr (P::kCluster > 1) ptx::cluster_sync();  // all barriers of the cluster are initialized
    const bool idle = (int)blockIdx.x >= params.tiles;   // it only completes the cluster
    if (warp >= P::kWarps) {
      if constexpr (P::kSetMaxNreg) P::Registers::to_producer();
      if (warp == P::kWarps) Loads::load_all(params, smem);
      if (warp == P::kWarps + 1 && !idle) Loads::write_zeros(smem);
      if (warp == P::kWarps + 2 && !idle) Loads::load_gate(params, smem);
      if constexpr (P::kPooled) {
        if (warp == P::kWarps + 3 && !idle) ptx::named_barrier_sync<P::kReady, P::kReadyThreads>();
        if (warp > P::kWarps && !idle) pool_all(params, smem);
      }
    } else if (!idle) {
      if constexpr (P::kSetMaxNreg) P::Registers::to_consumer();
      solve_all(params, smem);
    }
  }

 private:
  using Accum = float[1][P::kN / 2];  // index 4 j + 2 half + e: line j, channel `half`, column e
  using Kept = uint32_t[P::kN / 4];   // pairs of columns, rounded

  // ---- The image: lines of four pixels, a quarter of a row of the stem's B operand ----

  using Lines = Pack<Element, P::kSide>[P::kLines][P::kImage];

  AT_DEVICE static void read(const Params& params, const WarpCoord& coord, int tile, Lines& lines) {
    if (params.channels_last) read<true>(params, coord, tile, lines);
    else read<false>(params, coord, tile, lines);
  }

  template <bool kLast>
  AT_DEVICE static void read(const Params& params, const WarpCoord& coord, int tile, Lines& lines) {
    constexpr int kRows = P::kSide * P::kH, kOfPixel = kLast ? P::kImage : 1, kOfRow = P::kSide * P::kW * kOfPixel;
    const Element* line = (const Element*)params.p.p[P::kX] + (int64_t)tile * (kRows * P::kSide * P::kW * P::kImage) +
                          coord.thread / 8 * kOfRow + (coord.strip * 8 + coord.thread % 8) * P::kSide * kOfPixel;
    AT_UNROLL for (int i = 0; i < P::kLines; ++i) {
      const Element* from = line + i * (P::kStripThreads / 8) * kOfRow;
      if constexpr (kLast) {
        Pack<Element, P::kSide * P::kImage> pixels;
        pixels.read(from);
        AT_UNROLL for (int c = 0; c < P::kImage; ++c) AT_UNROLL
          for (int e = 0; e < P::kSide; ++e) lines[i][c].elements[e] = pixels.elements[e * P::kImage + c];
      } else {
        AT_UNROLL for (int c = 0; c < P::kImage; ++c)
          lines[i][c].read(from + c * (kRows * P::kSide * P::kW));
      }
    }
  }

  // Writes the patches' lines and makes them visible to the strip's wgmma.
  AT_DEVICE static void write_lines(const Layout& smem, const WarpCoord& coord, const Lines& lines) {
    AT_UNROLL for (int i = 0; i < P::kLines; ++i) {
      const int number = i * P::kStripThreads + coord.thread, row = number / 8, pixel = number % 8,
                line = row % P::kSide;
      const uint32_t to = smem.lines + coord.strip * P::kLineBytes + (row / P::kSide * 8 + pixel) * 32 +
                          (line / 2 ^ pixel / 4) * 16 + line % 2 * 8;
      AT_UNROLL for (int c = 0; c < P::kImage; ++c)
        ptx::st_shared(to + c * P::kStrips * P::kLineBytes, lines[i][c].words[0]);
    }
    ptx::fence_view_async_shared();
    ptx::named_barrier_sync<P::kStripThreads>(P::kStrip + coord.strip);
  }

  // ---- The pool ----

  template <typename Read>
  AT_DEVICE static void pool(const Params& params, int tile, int thread, int threads, const Read& read) {
    pool_image<Element, P::kH, P::kW, P::kChannels>(
        (Element*)params.p.p[P::kPooled] + (int64_t)tile * (P::kPixels / 4) * P::kChannels, thread, threads, read);
  }

  // The pooling warps: they pool all images of the block but its last.
  AT_DEVICE static void pool_all(const Params& params, const Layout& smem) {
    uint32_t parity = 0;
    AT_NO_UNROLL for (int tile = blockIdx.x; tile + (int)gridDim.x < params.tiles; tile += gridDim.x, parity ^= 1) {
      ptx::mbarrier_wait(smem.image, parity);
      const Element* from = (const Element*)params.p.p[P::kY] + (int64_t)tile * P::kPixels * P::kChannels;
      pool(params, tile, threadIdx.x - (P::kThreads + 32), P::kPoolThreads,
           [&](int line, int column, int vector, Pack<Element, 8>& to) {
             if (line >= 0 && column >= 0) to.read(from + (line * P::kW + column) * P::kChannels + vector * 8);
             else to.words[0] = make_uint4(0, 0, 0, 0);
           });
      ptx::named_barrier_sync<P::kPool, P::kPoolThreads>();
      if (threadIdx.x == P::kThreads + 32) ptx::mbarrier_arrive(smem.pooled);
    }
  }

  // Tells the pooling warps that image `number` is in global memory, once they have pooled the one before.
  AT_DEVICE static void tell_pool(const Layout& smem, const WarpCoord& coord, int number) {
    if (coord.strip == 0 && coord.warp == 0 && ptx::elect_one_sync()) {
      ptx::tma_store_wait_complete();
      if (number > 0) ptx::mbarrier_wait(smem.pooled, (number - 1) % 2);
      ptx::mbarrier_arrive(smem.image);
    }
    __syncwarp();
  }

  // ---- Products, and what follows them ----

  AT_DEVICE static void solve_all(const Params& params, const Layout& smem) {
    const WarpCoord coord;
    Lines lines;
    Accum accum;
    griddepcontrol_wait();
    read(params, coord, blockIdx.x, lines);
    ptx::named_barrier_sync<P::kReady, P::kReadyThreads>();  // the barriers are initialized
    write_lines(smem, coord, lines);
    begin_stem(smem, coord, accum);
    finish<0>(accum);
    const int half = 1 + coord.strip % 2;  // filter lines before the work in between
    int announced = 0;                     // images announced to the pooling warps
    for (int tile = blockIdx.x; tile < params.tiles; tile += gridDim.x) {
      const bool last = tile + (int)gridDim.x >= params.tiles;
      Accum next;
      Kept kept;
      write_patch(
          smem, coord, accum,
          [&] {
            stored(coord);
            meet();
          },
          [&](float (&v)[2], int number, int channel) {
            Config::Steps::kept(v, params.p.p, params.scalars, channel);
            kept[number] = pair(v[0], v[1]);
            Config::Steps::biased(v, params.p.p, params.scalars, channel);
          });
      publish();
      ptx::mbarrier_wait(smem.zeros, 0);
      convolve(smem, coord, 0, 0, half, accum);
      if (!last) read(params, coord, tile + gridDim.x, lines);  // while the other strips multiply
      convolve(smem, coord, 0, half, 3, accum);
      if constexpr (P::kPooled)
        if (tile != (int)blockIdx.x) tell_pool(smem, coord, announced++);
      finish<0>(accum);
      write_patch(
          smem, coord, accum, [] { meet(); },
          [&](float (&v)[2], int, int channel) { Config::Steps::inner(v, params.p.p, params.scalars, channel); });
      publish();
      convolve(smem, coord, 1, 0, half, accum);
      write_lines(smem, coord, lines);  // of the next image; after the last image they are unused
      convolve(smem, coord, 1, half, 3, accum);
      begin_stem(smem, coord, next);
      if (last) launch_dependents();
      finish<1>(accum);
      float gates[2];
      excite(params, smem, coord, accum, gates);
      write_patch(
          smem, coord, accum, [] {},
          [&](float (&v)[2], int number, int channel) {
            const float gate = gates[number % 2];
            AT_UNROLL for (int e = 0; e < 2; ++e)
              v[e] *= gate;
            Config::Steps::gated(v, params.p.p, params.scalars, channel);
            Pack<Element, 2> identity;
            identity.words[0] = kept[number];
            AT_UNROLL for (int e = 0; e < 2; ++e)
              v[e] += to_float(identity.elements[e]);
            Config::Steps::after(v, params.p.p, params.scalars, channel);
          });
      publish();
      store(params, smem, coord, tile);
      if constexpr (P::kPooled)
        if (last)
          pool(params, tile, threadIdx.x, P::kThreads, [&](int line, int column, int vector, Pack<Element, 8>& to) {
            const int pixel = (line + 1) * P::kPatchW + column + 1;
            to.words[0] = ptx::ld_shared(smem.patch + pixel * P::kRowBytes + (vector ^ pixel % 8) * 16);
          });
      finish<0>(next);
      ptx::copy_accumulators(next, accum);
    }
    stored(coord);
  }

  // A barrier of all multiplying threads.
  AT_DEVICE static void meet() { ptx::named_barrier_sync<P::kAll, P::kThreads>(); }

  // Makes the writes of all multiplying threads visible to wgmma and TMA.
  AT_DEVICE static void publish() {
    ptx::fence_view_async_shared();
    meet();
  }

  AT_DEVICE static uint32_t pair(float a, float b) {
    Pack<Element, 2> both;
    from_floats(both.elements, a, b);
    return both.words[0];
  }

  AT_DEVICE static void begin_stem(const Layout& smem, const WarpCoord& coord, Accum& accum) {
    const uint32_t hi = ptx::descriptor_hi<32>(8 * 32);
    const uint32_t a = ptx::descriptor_lo(smem.stem), b = ptx::descriptor_lo(smem.lines + coord.strip * P::kLineBytes);
    ptx::mbarrier_wait(smem.full, 0);
    ptx::warpgroup_fence_operand(accum);
    ptx::warpgroup_arrive();
    AT_UNROLL for (int c = 0; c < P::kImage; ++c)
      Config::wgmma(accum[0], ptx::SmemDescriptor{a + c * (P::kStepBytes / 16), hi},
                    ptx::SmemDescriptor{b + c * (P::kStrips * P::kLineBytes / 16), hi}, c > 0);
    ptx::warpgroup_commit_batch();
  }

  // Issues the products of filter lines `begin` to `end` of convolution `which` of the patch.
  AT_DEVICE static void convolve(const Layout& smem, const WarpCoord& coord, int which, int begin, int end,
                                 Accum& accum) {
    const uint32_t a_hi = ptx::descriptor_hi<P::kRowBytes>(8 * P::kRowBytes),
                   b_hi = ptx::descriptor_hi<P::kRowBytes>(P::kPatchW * P::kRowBytes);
    uint32_t line = ptx::descriptor_lo(smem.patch + (begin * P::kPatchW + coord.strip * 8) * P::kRowBytes);
    const int first = which * P::kTaps + begin * 3;
    uint32_t a = ptx::descriptor_lo(smem.weights + first * P::kTapBytes),
             full = smem.full + ptx::kMbarrierBytes + ptx::kMbarrierBytes * first;
    int accumulate = begin > 0;
    ptx::warpgroup_fence_operand(accum);
    AT_NO_UNROLL for (int r = begin; r < end; ++r, line += P::kPatchW * (P::kRowBytes / 16)) {
      uint32_t tap = line;
      for (int s = 0; s < 3; ++s, tap += P::kRowBytes / 16, a += P::kTapBytes / 16, full += ptx::kMbarrierBytes) {
        ptx::mbarrier_wait(full, 0);  // returns at once after the first tile
        ptx::warpgroup_arrive();
        AT_UNROLL for (int k = 0; k < P::kChannels / 16; ++k) {
          Config::wgmma(accum[0], ptx::SmemDescriptor{a + 2 * k, a_hi}, ptx::SmemDescriptor{tap + 2 * k, b_hi},
                        accumulate);
          accumulate = 1;
        }
        ptx::warpgroup_commit_batch();
      }
    }
  }

  // Waits until at most `pending` batches of products are unfinished.
  template <int pending>
  AT_DEVICE static void finish(Accum& accum) {
    ptx::warpgroup_wait<pending>();
    ptx::warpgroup_fence_operand(accum);
  }

  // Applies steps(v, number, channel) to the sums and writes the result over the image's pixels once ready() has
  // returned. v: two columns. number: 2 line + half.
  template <typename Ready, typename Steps>
  AT_DEVICE static void write_patch(const Layout& smem, const WarpCoord& coord, const Accum& accum, const Ready& ready,
                                    const Steps& steps) {
    uint32_t words[P::kH / 2][4];
    AT_UNROLL for (int number = 0; number < P::kN / 4; ++number) {
      float v[2] = {accum[0][2 * number], accum[0][2 * number + 1]};
      steps(v, number, coord.channel + 8 * (number % 2));
      words[number / 4][number % 4] = pair(v[0], v[1]);
    }
    ready();
    // Each lane addresses a row of a matrix: eight channels of a pixel.
    const int matrix = coord.lane / 8, chunk = 2 * coord.warp + matrix % 2;
    const int first = (matrix / 2 + 1) * P::kPatchW + coord.strip * 8 + coord.lane % 8 + 1;  // pixel of the patch
    uint32_t rows[2];  // the swizzle repeats every four lines
    AT_UNROLL for (int i = 0; i < 2; ++i)
      rows[i] = smem.patch + first * P::kRowBytes + (chunk ^ (first + 2 * i * P::kPatchW) % 8) * 16;
    AT_UNROLL for (int j = 0; j < P::kH / 2; ++j)
      ptx::stmatrix_x4_trans(rows[j % 2] + 2 * j * P::kPatchW * P::kRowBytes, words[j]);
  }

  // Applies the steps before the gate and computes the gates of this thread's two channels.
  AT_DEVICE static void excite(const Params& params, const Layout& smem, const WarpCoord& coord, Accum& accum,
                               float (&gates)[2]) {
    float total[2] = {};
    AT_UNROLL for (int number = 0; number < P::kN / 4; ++number) {
      float v[2] = {accum[0][2 * number], accum[0][2 * number + 1]};
      Config::Steps::before(v, params.p.p, params.scalars, coord.channel + 8 * (number % 2));
      accum[0][2 * number] = v[0], accum[0][2 * number + 1] = v[1];
      total[number % 2] += v[0] + v[1];
    }
    float* all = (float*)__cvta_shared_to_generic(smem.sums);
    AT_UNROLL for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(0xffffffffu, total[half], 1);
      total[half] += __shfl_xor_sync(0xffffffffu, total[half], 2);
      if (coord.lane % 4 == 0) all[coord.strip * P::kChannels + coord.channel + 8 * half] = total[half];
    }
    meet();  // and all warps have read the patch
    ptx::mbarrier_wait(smem.gate, 0);
    const Element *w1 = (const Element*)__cvta_shared_to_generic(smem.w1),
                  *w2 = (const Element*)__cvta_shared_to_generic(smem.w2);
    const float *b1 = (const float*)__cvta_shared_to_generic(smem.b1),
                *b2 = (const float*)__cvta_shared_to_generic(smem.b2);
    float means[2] = {};
    AT_UNROLL for (int strip = 0; strip < P::kStrips; ++strip) AT_UNROLL
      for (int e = 0; e < 2; ++e) means[e] += all[strip * P::kChannels + 2 * coord.lane + e];
    gates[0] = b2[coord.channel], gates[1] = b2[coord.channel + 8];
    AT_NO_UNROLL for (int o = 0; o < params.hidden; o += 4) {  // every warp computes all of it, which saves a barrier
      float sum[4];
      AT_UNROLL for (int i = 0; i < 4; ++i) {
        float w[2];
        load(w, w1 + (o + i) * P::kChannels + 2 * coord.lane);
        sum[i] = (w[0] * means[0] + w[1] * means[1]) * (1.f / P::kPixels);
      }
      AT_UNROLL for (int distance = 16; distance; distance /= 2) AT_UNROLL
        for (int i = 0; i < 4; ++i) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], distance);
      AT_UNROLL for (int half = 0; half < 2; ++half) {
        float w[4];
        load(w, w2 + (coord.channel + 8 * half) * params.hidden + o);
        AT_UNROLL for (int i = 0; i < 4; ++i)
          gates[half] += w[i] * at_least_zero(sum[i] + b1[o + i]);
      }
    }
    AT_UNROLL for (int half = 0; half < 2; ++half)
      gates[half] = logistic(gates[half]);
  }

  // Starts to store the image. TMA clips the columns of zeros beside it.
  AT_DEVICE static void store(const Params& params, const Layout& smem, const WarpCoord& coord, int tile) {
    if (coord.strip == 0 && coord.warp == 0 && ptx::elect_one_sync()) {
      ptx::tma_store_4d(params.output_map, smem.patch + (P::kPatchW + 1) * P::kRowBytes, 0, 0, 0, tile);
      ptx::tma_store_arrive();
    }
    __syncwarp();  // converges the warp
  }

  // Waits until TMA has read the image that is stored.
  AT_DEVICE static void stored(const WarpCoord& coord) {
    if (coord.strip == 0 && coord.warp == 0 && ptx::elect_one_sync()) ptx::tma_store_wait<0>();
    __syncwarp();
  }
};

}  // namespace at
