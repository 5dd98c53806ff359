// A residual block that halves its images, in one kernel: a 3x3 convolution with stride 2, a second one, squeeze-and-
// excitation, and a projection of the pooled input as the identity; NHWC, outputs of 4 or 8 by 4 or 8 pixels.
//
// A tile is 64 pixels: whole images, line by line, so that a group of eight rows of wgmma's operand is a piece of one line
// of neighbouring images. kParts blocks of a cluster share a tile's output channels; kPeers tiles of a cluster share the
// loads of the weights, which are streamed. What TMA loads for the first convolution, tap by tap, other threads add up while
// the tensor cores multiply it: that is the pool.
//
// What follows from the first convolution's sums stays in shared memory three times, shifted by a pixel to either side,
// with lines of zeros above and below: a tap of the second convolution is one of these copies from some line on. Blocks
// that share a tile send each other their channels of it. Between x and y nothing leaves the cluster.
// down_plan.cuh has what comes before the launch.
#pragma once
#include "sm90/counting.cuh"
#include "sm90/down_plan.cuh"

namespace at {

template <typename Config>
struct HopperSeDownBlock : DownPlan<Config> {
  using Plan = DownPlan<Config>;
  using typename Plan::Element, typename Plan::Excitation, typename Plan::Layout, typename Plan::Member;
  using typename Plan::Params;
  using Plan::copy_of, Plan::excitation, Plan::kCluster, Plan::kColumns, Plan::kCopies, Plan::kCopyBytes, Plan::kFirstGate;
  using Plan::kGate, Plan::kImages, Plan::kInner, Plan::kK, Plan::kLineBytes, Plan::kN, Plan::kOwn, Plan::kP, Plan::kParts;
  using Plan::kPeers, Plan::kPooled, Plan::kQ, Plan::kRowBytes, Plan::kTaps, Plan::kTileBytes, Plan::kVector;
  using Plan::kWeightBytes, Plan::kWide, Plan::kY, Plan::own_copy;

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& x, char* memory) {
    const Layout at(x, hopper::shared_address(memory));
    const int rank = kCluster > 1 ? (int)hopper::rank_in_cluster() : 0;
    const Member me{rank % kParts, rank / kParts, (int)blockIdx.x / kCluster * kPeers + rank / kParts};
    const int warp = hopper::uniform(threadIdx.x / 32);
    const bool images = warp == kWide / 16;
    if (warp >= kWide / 16) hopper::prefetch_map(images ? x.image_map : x.weight_maps[0]);
    init_barriers(x, at, me, warp);
    hopper::sync_all<kCluster>();

    if (warp < kWide / 32) {
      solve(x, at, me);
    } else if (warp < kWide / 16) {
      add_up(x, at, me);
    } else {
      if (hopper::elect()) {
        if (images) load_images(x, at, me);
        else load_weights(x, at, me);
      }
      __syncwarp();
    }
  }

 private:
  // Each warp those of a kind.
  AT_DEVICE static void init_barriers(const Params& x, const Layout& at, const Member& me, int warp) {
    if (warp == 0) {
      hopper::init_barriers(at.full, x.fill_slots, 1);
      hopper::init_barriers(at.gate_full, 1, 1);
    } else if (warp == 1) {
      hopper::init_barriers(at.empty, x.fill_slots, (1 + kWide / 32) * kParts);  // who multiplies, each warp that adds up
    } else if (warp == 2) {
      hopper::init_barriers(at.weight_full, x.weight_slots, 1);
      hopper::init_barriers(at.inner_full, kParts, 1);
    } else if (warp == 3) {
      hopper::init_barriers(at.weight_empty, x.weight_slots, kPeers);
    }
    hopper::publish_barriers();
    const int part = threadIdx.x % 32;
    if (warp == 2 && part < kParts && part != me.part) hopper::expect_bytes(at.inner_full + 8 * part, kOwn * kCopies * kTileBytes);
  }

  // ---- Loads. A buffer that is not filled again is not given back, so no block hears of one that has ended. ----

  AT_DEVICE static void load_images(const Params& x, const Layout& at, const Member& me) {
    const uint16_t parts = ((1 << kParts) - 1) << Member::rank(0, me.peer);
    const int first = me.part * (kP / kParts);  // of its lines
    Ring ring{0, 1};
    wait_for_previous();
#pragma unroll 1
    for (int chunk = 0; chunk < x.chunks; ++chunk)
#pragma unroll 1
      for (int r = 0; r < 3; ++r)
#pragma unroll 1
        for (int s = 0; s < 3; ++s, ring.advance(x.fill_slots)) {
          const uint32_t full = at.full + 8 * ring.slot;
          hopper::wait(at.empty + 8 * ring.slot, ring.parity);
          hopper::expect_bytes(full, kTileBytes);
          hopper::load_4d<(kParts > 1)>(at.fills + ring.slot * kTileBytes + first * kLineBytes, x.image_map, full,
                                        chunk * kK, s - 1, me.tile * kImages, 2 * first + r - 1, parts);
        }
  }

  AT_DEVICE static void load_weights(const Params& x, const Layout& at, const Member& me) {
    constexpr int kRows = kN / kPeers;
    uint16_t peers = 0;
    for (int i = 0; i < kPeers; ++i) peers |= 1 << Member::rank(me.part, i);
    Ring ring{0, 1};
    const auto load = [&](int map, int chunk, int tap) {
      const uint32_t full = at.weight_full + 8 * ring.slot;
      hopper::wait(at.weight_empty + 8 * ring.slot, ring.parity);
      hopper::expect_bytes(full, kWeightBytes);
      hopper::load_3d<(kPeers > 1)>(at.weights + ring.slot * kWeightBytes + me.peer * kRows * kRowBytes,
                                    x.weight_maps[map], full, chunk * kK, tap, me.part * kN + me.peer * kRows, peers);
      ring.advance(x.weight_slots);
    };
    const auto load_taps = [&](int map, int chunk) {
#pragma unroll 1
      for (int tap = 0; tap < kTaps; ++tap) load(map, chunk, tap);
    };
#pragma unroll 1
    for (int i = 0; i < x.chunks; ++i) load_taps(0, i);
    hopper::prefetch_map(x.weight_maps[2]);
#pragma unroll 1
    for (int i = 0; i < x.chunks; ++i) load(1, i, 0);
#pragma unroll 1
    for (int i = 0; i < kInner; ++i) load_taps(2, inner_chunk(me, i));
  }

  // The second convolution begins with the channels that a block has made itself.
  AT_DEVICE static int inner_chunk(const Member& me, int i) { return (me.part * kOwn + i) % kInner; }

  // ---- Products ----

  using Sums = float[1][kN / 2];

  // How far the multiplying warps are with the weights.
  struct Progress {
    uint32_t low;  // where their ring begins, as a descriptor has it
    Ring ring{0, 0};
    int piece = 0, used = -1;  // used: a slot whose products may not be over
  };

  // Adds the product of the tile at `a` (hopper::low) with the next weights; those of the call before are over then.
  AT_DEVICE static void multiply(const Params& x, const Layout& at, const Member& me, Progress& weights, uint32_t a,
                                 Sums& sums, bool accumulate) {
    const uint32_t high = hopper::high<kRowBytes>(8 * kRowBytes), b = weights.low + weights.ring.slot * (kWeightBytes / 16);
    hopper::wait(at.weight_full + 8 * weights.ring.slot, weights.ring.parity);
    hopper::begin_products();
#pragma unroll
    for (int k = 0; k < kK / 16; ++k)
      Config::multiply(sums[0], hopper::descriptor(a + 2 * k, high), hopper::descriptor(b + 2 * k, high), accumulate || k);
    hopper::commit_products();
    hopper::wait_for_products<1>();
    release_weights(x, at, me, weights);
    weights.used = weights.ring.slot;
    weights.ring.advance(x.weight_slots), ++weights.piece;
  }

  // Waits for all products and closes a sum.
  AT_DEVICE static void finish(const Params& x, const Layout& at, const Member& me, Progress& weights, Sums& sums) {
    hopper::wait_for_products<0>();
    hopper::pin(sums);
    release_weights(x, at, me, weights);
    weights.used = -1;
  }

  // Tells all who fill it that the slot last used is free.
  AT_DEVICE static void release_weights(const Params& x, const Layout& at, const Member& me, const Progress& weights) {
    if (weights.used < 0 || weights.piece - 1 + x.weight_slots >= x.pieces()) return;
    const uint32_t empty = at.weight_empty + 8 * weights.used;
    if constexpr (kPeers == 1) {
      if (threadIdx.x == 0) hopper::arrive(empty);
    } else {
      if (threadIdx.x < kPeers) hopper::arrive_at(empty, Member::rank(me.part, threadIdx.x));
    }
  }

  // The same of a fill, by who multiplies and by each warp that adds up. thread: as many tell as there are parts.
  AT_DEVICE static void release_fill(const Params& x, const Layout& at, const Member& me, int fill, int slot, int thread) {
    if (fill + x.fill_slots >= x.fills()) return;
    if constexpr (kParts == 1) {
      if (thread == 0) hopper::arrive(at.empty + 8 * slot);
    } else {
      if (thread < kParts) hopper::arrive_at(at.empty + 8 * slot, Member::rank(thread, me.peer));
    }
  }

  // ---- What warps do beside the products: zeros around the inner values, the pool, and the gate's weights. The first two are
  // waited for when the first convolution is over, the gate's weights much later. ----

  AT_DEVICE static void add_up(const Params& x, const Layout& at, const Member& me) {
    constexpr int kVectors = kTileBytes / 16 / kWide;  // of each thread
    const int thread = threadIdx.x - kWide;
    clear_lines(x, at, thread);
    Ring ring{0, 0};
    int fill = 0;
    for (int chunk = 0; chunk < x.chunks; ++chunk) {
      float pooled[kVectors][kVector] = {};
#pragma unroll 1
      for (int tap = 0; tap < kTaps; ++tap, ++fill) {
        const uint32_t tile = at.fills + ring.slot * kTileBytes;
        hopper::wait(at.full + 8 * ring.slot, ring.parity);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          Pack<Element, kVector> read;
          read.words[0] = hopper::read(tile + (thread + i * kWide) * 16);
#pragma unroll
          for (int e = 0; e < kVector; ++e) pooled[i][e] += to_float(read.elements[e]);
        }
        __syncwarp();
        release_fill(x, at, me, fill, ring.slot, thread % 32);
        ring.advance(x.fill_slots);
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) pooled[i][e] *= 1.f / kTaps;
        hopper::write(own_copy(at, me, chunk) + (thread + i * kWide) * 16, rounded<Element>(pooled[i]).words[0]);
      }
    }
    hopper::publish_shared();
    hopper::arrive_at_meeting<kPooled, 2 * kWide>();
    const Excitation gate = excitation(x.hidden);
    gate.template load_weights<kWide>((char*)__cvta_shared_to_generic(at.gate), x.p.p + kFirstGate, me.part * kN, x.k, thread);
    wait_for_all_copies();
    hopper::arrive_at_meeting<kGate, 2 * kWide>();
  }

  // ---- What the multiplying warps do ----

  // This thread's part of a tile: rows 8 half + lane / 4 of a warp's sixteen, channels 8 (lane % 4) on of every 32.
  struct Part {
    int channel;   // of the block's
    int row[2];    // of the tile: (line, image, column)
    int place[2];  // of the pixel among all of the output, or -1
    int image[2], column[2];
    int partial[2];  // number of the row's run among an image's, and these image by image
    AT_DEVICE Part(const Params& x, int tile) {
      const int lane = threadIdx.x % 32, warp = hopper::uniform(threadIdx.x / 32);
      channel = 8 * (lane % 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        row[half] = 16 * warp + 8 * half + lane / 4;
        column[half] = row[half] % kQ, image[half] = row[half] / kQ % kImages;
        const int line = row[half] / (kQ * kImages), n = tile * kImages + image[half];
        place[half] = n < x.n ? (n * kP + line) * kQ + column[half] : -1;
        partial[half] = image[half] * kP + line;
      }
    }
  };

  AT_DEVICE static void solve(const Params& x, const Layout& at, const Member& me) {
    const Part part(x, me.tile);
    const int first = me.part * kN;  // channel
    const Excitation gate = excitation(x.hidden);
    char* memory = (char*)__cvta_shared_to_generic(at.gate);
    wait_for_previous();

    Progress weights{hopper::low(at.weights)};
    Sums sums, projected;
    hopper::pin(sums);
    convolve_first(x, at, me, weights, sums);
    hopper::meet<kPooled, 2 * kWide>();
    hopper::pin(projected);
    for (int chunk = 0; chunk < x.chunks; ++chunk)
      multiply(x, at, me, weights, hopper::low(own_copy(at, me, chunk)), projected, chunk > 0);
    finish(x, at, me, weights, projected);
    Excitation::sync();  // and no longer needed
    write_inner(x, at, me, part, sums);
    hopper::publish_shared();
    Excitation::sync();
    if (kParts > 1 && threadIdx.x == 0) send_inner(x, at, me);

    hopper::pin(sums);
    convolve_second(x, at, me, weights, sums);
    launch_next();
    hopper::meet<kGate, 2 * kWide>();
    excite(x, gate, memory, me, part, at.gate_full, sums);
    const float* gates = (const float*)(memory + gate.mean());
    each_unit(part, [&](int half, int columns, int own) {
      if (part.place[half] < 0) return;
      const int channel = first + own;
      const int64_t offset = (int64_t)part.place[half] * x.k + channel;
      float v[kVector], other[kVector];
      hopper::take(v, sums, 0, half, columns);
      load(other, gates + part.image[half] * kN + own);
#pragma unroll
      for (int e = 0; e < kVector; ++e) v[e] *= other[e];
      Config::Steps::gated(v, x.p.p, x.scalars, channel);
      hopper::take(other, projected, 0, half, columns);
#pragma unroll
      for (int e = 0; e < kVector; ++e) v[e] += other[e];
      Config::Steps::apply(v, x.p.p, x.scalars, channel, offset);
      store(v, (Element*)x.p.p[kY] + offset);
    });
  }

  // Calls work(half, columns, channel of the block's) for this thread's units of eight channels.
  template <typename Work>
  AT_DEVICE static void each_unit(const Part& part, const Work& work) {
#pragma unroll
    for (int i = 0; i < 2 * kColumns; ++i) work(i % 2, i / 2, part.channel + 32 * (i / 2));
  }

  // The lines above and below the images, in every copy.
  AT_DEVICE static void clear_lines(const Params& x, const Layout& at, int thread) {
#pragma unroll 1
    for (int line = 0; line < kInner * kCopies * 2; ++line) {
      const uint32_t to = at.inner + line / 2 * kCopyBytes + line % 2 * (kCopyBytes - kLineBytes);
      for (int i = 16 * thread; i < kLineBytes; i += 16 * kWide) hopper::write(to + i, make_uint4(0, 0, 0, 0));
    }
  }

  AT_DEVICE static void convolve_first(const Params& x, const Layout& at, const Member& me, Progress& weights, Sums& sums) {
    const uint32_t fills = hopper::low(at.fills);
    Ring ring{0, 0};
    int used = -1;
#pragma unroll 1
    for (int fill = 0; fill < x.fills(); ++fill, ring.advance(x.fill_slots)) {
      hopper::wait(at.full + 8 * ring.slot, ring.parity);
      multiply(x, at, me, weights, fills + ring.slot * (kTileBytes / 16), sums, fill > 0);
      if (used >= 0) release_fill(x, at, me, fill - 1, used, threadIdx.x);
      used = ring.slot;
    }
    finish(x, at, me, weights, sums);
  }

  // The sums of the second convolution, of what all blocks of the tile have made.
  AT_DEVICE static void convolve_second(const Params& x, const Layout& at, const Member& me, Progress& weights, Sums& sums) {
    for (int i = 0; i < kInner; ++i) {
      const int chunk = inner_chunk(me, i);
      if (kParts > 1 && i >= kOwn) hopper::wait(at.inner_full + 8 * (chunk / kOwn), 0);
      uint32_t line = hopper::low(copy_of(at, chunk, 0));
      for (int r = 0; r < 3; ++r, line += kLineBytes / 16)
        for (int s = 0; s < 3; ++s)
          multiply(x, at, me, weights, line + s * (kCopyBytes / 16), sums, i + r + s > 0);
    }
    finish(x, at, me, weights, sums);
  }

  // What follows from the first sums, as the second convolution reads it: copy s holds at a column what tap s finds
  // there, the value s - 1 columns on, or zero beyond the line. The swizzle is TMA's.
  AT_DEVICE static void write_inner(const Params& x, const Layout& at, const Member& me, const Part& part, Sums& sums) {
    const uint4 zero = make_uint4(0, 0, 0, 0);
    each_unit(part, [&](int half, int columns, int own) {
      float v[kVector];
      hopper::take(v, sums, 0, half, columns);
      Config::Steps::inner(v, x.p.p, x.scalars, me.part * kN + own);
      const uint4 value = rounded<Element>(v).words[0];
      const auto put = [&](int copy, int row, uint4 what) {
        const uint32_t to = own_copy(at, me, own / kK * kCopies + copy);
        hopper::write(to + row * kRowBytes + 16 * (own % kK / kVector ^ row % 8), what);
      };
      const int row = part.row[half], last = kQ - 1;
      const bool begins = part.column[half] == 0, ends = part.column[half] == last;
      put(1, row, value);
      put(0, ends ? row - last : row + 1, ends ? zero : value);
      put(2, begins ? row + last : row - 1, begins ? zero : value);
    });
  }

  AT_DEVICE static void send_inner(const Params& x, const Layout& at, const Member& me) {
    for (int i = 1; i < kParts; ++i) {
      const int to = Member::rank((me.part + i) % kParts, me.peer);
      for (int copy = 0; copy < kOwn * kCopies; ++copy) {
        const uint32_t place = own_copy(at, me, copy);
        hopper::send_bytes(place, place, kTileBytes, at.inner_full + 8 * me.part, to);
      }
    }
  }

  // Applies the steps before the gate to the sums, adds up each image's pixels, and finds the gates.
  AT_DEVICE static void excite(const Params& x, const Excitation& gate, char* memory, const Member& me, const Part& part,
                               uint32_t barrier, Sums& sums) {
#pragma unroll
    for (int columns = 0; columns < kColumns; ++columns) {
      const int own = part.channel + 32 * columns;
      float v[2][kVector];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        hopper::take(v[half], sums, 0, half, columns);
        Config::Steps::before(v[half], x.p.p, x.scalars, me.part * kN + own);
        hopper::put(v[half], sums, 0, half, columns);
      }
      if constexpr (kImages == 1) {
        gate.collect(v, memory, hopper::uniform(threadIdx.x / 32), own);
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) Excitation::leave_sums(v[half], gate.rows, (float*)memory + part.partial[half] * kN + own);
      }
    }
    if constexpr (kParts == 1 && kImages == 1) gate.excite_image(memory);
    else gate.excite(memory, me.part * kN, x.k, me.part, barrier, [&](int part) { return Member::rank(part, me.peer); });
  }
};

}  // namespace at
