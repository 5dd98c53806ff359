// A residual block that halves its images, in one kernel: a 3 x 3 convolution with stride 2, a second one,
// squeeze-and-excitation, and a projection of the pooled input as the identity. NHWC, outputs of 4 or 8 by 4 or 8
// pixels.
//
// A tile is 64 pixels: whole images, line by line, so that a group of eight rows of wgmma's operand is part of one line
// of neighbouring images. kParts blocks of a cluster share a tile's output channels. kPeers tiles of a cluster share
// the loads of the weights, which are streamed. For the average pool other threads add up the tap tiles that TMA loads
// for the first convolution, while the tensor cores multiply them.
//
// The first convolution's result stays in shared memory three times, shifted by -1, 0 and 1 pixels, with lines of zeros
// above and below: a tap of the second convolution is one of these copies, from some line on. Blocks that share a tile
// send each other their channels of it. Between x and y nothing leaves the cluster. plan.cuh has prepare().
#pragma once
#include "sm90/fragment.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/wgmma.cuh"
#include "sm90/se_resnet9/down/plan.cuh"

namespace at {

template <typename Config>
struct HopperSeDownBlock : DownPlan<Config> {
  using P = DownPlan<Config>;
  using Element = typename P::Element;
  using Excitation = typename P::Excitation;
  using Layout = typename P::Layout;
  using ClusterCoord = typename P::ClusterCoord;
  using Params = typename P::Params;

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& x, char* memory) {
    const Layout smem(x, ptx::cast_smem_ptr_to_uint(memory));
    const int rank = P::kCluster > 1 ? (int)ptx::block_rank_in_cluster() : 0;
    const ClusterCoord me{rank % P::kParts, rank / P::kParts,
                          (int)blockIdx.x / P::kCluster * P::kPeers + rank / P::kParts};
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    const bool images = warp == P::kWide / 16;
    if (warp >= P::kWide / 16) ptx::prefetch_tensormap(images ? x.image_map : x.weight_maps[0]);
    init_barriers(x, smem, me, warp);
    ptx::cluster_or_block_sync<P::kCluster>();

    if (warp < P::kWide / 32) {
      solve(x, smem, me);
    } else if (warp < P::kWide / 16) {
      add_up(x, smem, me);
    } else {
      if (ptx::elect_one_sync()) {
        if (images) load_images(x, smem, me);
        else load_weights(x, smem, me);
      }
      __syncwarp();
    }
  }

 private:
  // Each warp initializes one kind of barrier.
  AT_DEVICE static void init_barriers(const Params& x, const Layout& smem, const ClusterCoord& me, int warp) {
    if (warp == 0) {
      ptx::mbarrier_init_array(smem.full, x.fill_slots, 1);
      ptx::mbarrier_init_array(smem.gate_full, 1, 1);
    } else if (warp == 1) {
      ptx::mbarrier_init_array(smem.empty, x.fill_slots,
                               (1 + P::kWide / 32) * P::kParts);  // the multiplying warpgroup, each adding warp
    } else if (warp == 2) {
      ptx::mbarrier_init_array(smem.weight_full, x.weight_slots, 1);
      ptx::mbarrier_init_array(smem.inner_full, P::kParts, 1);
    } else if (warp == 3) {
      ptx::mbarrier_init_array(smem.weight_empty, x.weight_slots, P::kPeers);
    }
    ptx::fence_barrier_init();
    const int part = threadIdx.x % 32;
    if (warp == 2 && part < P::kParts && part != me.part)
      ptx::mbarrier_arrive_expect_tx(smem.inner_full + 8 * part, P::kOwn * P::kCopies * P::kTileBytes);
  }

  // ---- Loads. A stage that is not refilled is not released, so no arrival goes to a block that has exited. ----

  AT_DEVICE static void load_images(const Params& x, const Layout& smem, const ClusterCoord& me) {
    const uint16_t parts = ((1 << P::kParts) - 1) << ClusterCoord::rank(0, me.peer);
    const int first = me.part * (P::kP / P::kParts);  // its first line
    PipelineState ring{0, 1};
    griddepcontrol_wait();
#pragma unroll 1
    for (int chunk = 0; chunk < x.chunks; ++chunk)
#pragma unroll 1
      for (int r = 0; r < 3; ++r)
#pragma unroll 1
        for (int s = 0; s < 3; ++s, ring.advance(x.fill_slots)) {
          const uint32_t full = P::fill_pipeline(smem).full_barrier(ring.index);
          P::fill_pipeline(smem).producer_acquire(ring);
          ptx::mbarrier_arrive_expect_tx(full, P::kTileBytes);
          ptx::tma_load_4d<(P::kParts > 1)>(smem.fills + ring.index * P::kTileBytes + first * P::kLineBytes,
                                            x.image_map, full, chunk * P::kK, s - 1, me.tile * P::kImages,
                                            2 * first + r - 1, parts);
        }
  }

  AT_DEVICE static void load_weights(const Params& x, const Layout& smem, const ClusterCoord& me) {
    constexpr int kRows = P::kN / P::kPeers;
    uint16_t peers = 0;
    for (int i = 0; i < P::kPeers; ++i) peers |= 1 << ClusterCoord::rank(me.part, i);
    PipelineState ring{0, 1};
    const auto load = [&](int map, int chunk, int tap) {
      // This is weight_pipeline(smem).producer_acquire(ring), written out: a call reorders the loop's instructions.
      const uint32_t full = smem.weight_full + ptx::kMbarrierBytes * ring.index;
      ptx::mbarrier_wait(smem.weight_empty + ptx::kMbarrierBytes * ring.index, ring.phase);
      ptx::mbarrier_arrive_expect_tx(full, P::kWeightBytes);
      ptx::tma_load_3d<(P::kPeers > 1)>(smem.weights + ring.index * P::kWeightBytes + me.peer * kRows * P::kRowBytes,
                                        x.weight_maps[map], full, chunk * P::kK, tap, me.part * P::kN + me.peer * kRows,
                                        peers);
      ring.advance(x.weight_slots);
    };
    const auto load_taps = [&](int map, int chunk) {
#pragma unroll 1
      for (int tap = 0; tap < P::kTaps; ++tap) load(map, chunk, tap);
    };
#pragma unroll 1
    for (int i = 0; i < x.chunks; ++i) load_taps(0, i);
    ptx::prefetch_tensormap(x.weight_maps[2]);
#pragma unroll 1
    for (int i = 0; i < x.chunks; ++i) load(1, i, 0);
#pragma unroll 1
    for (int i = 0; i < P::kInner; ++i) load_taps(2, inner_chunk(me, i));
  }

  // The second convolution starts with the block's own channels, which need no exchange.
  AT_DEVICE static int inner_chunk(const ClusterCoord& me, int i) { return (me.part * P::kOwn + i) % P::kInner; }

  // ---- Products ----

  using Sums = float[1][P::kN / 2];

  // The multiplying warpgroup's position in the ring of weights.
  struct Progress {
    uint32_t lo;  // SmemDescriptor::lo of the ring's first stage
    PipelineState ring{0, 0};
    int piece = 0, used = -1;  // used: a stage whose products may be unfinished, or -1
  };

  // Adds the product of the tile at `a` (SmemDescriptor::lo) with the next weights, and waits for the product before.
  AT_DEVICE static void multiply(const Params& x, const Layout& smem, const ClusterCoord& me, Progress& weights,
                                 uint32_t a, Sums& sums, bool accumulate) {
    const uint32_t hi = ptx::descriptor_hi<P::kRowBytes>(8 * P::kRowBytes),
                   b = weights.lo + weights.ring.index * (P::kWeightBytes / 16);
    P::weight_pipeline(smem).consumer_wait(weights.ring);
    ptx::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < P::kK / 16; ++k)
      Config::wgmma(sums[0], ptx::SmemDescriptor{a + 2 * k, hi}, ptx::SmemDescriptor{b + 2 * k, hi}, accumulate || k);
    ptx::warpgroup_commit_batch();
    ptx::warpgroup_wait<1>();
    release_weights(x, smem, me, weights);
    weights.used = weights.ring.index;
    weights.ring.advance(x.weight_slots), ++weights.piece;
  }

  // Waits for all products and releases the last stage of weights.
  AT_DEVICE static void finish(const Params& x, const Layout& smem, const ClusterCoord& me, Progress& weights,
                               Sums& sums) {
    ptx::warpgroup_wait<0>();
    ptx::warpgroup_fence_operand(sums);
    release_weights(x, smem, me, weights);
    weights.used = -1;
  }

  // Releases the stage of weights whose products are complete, unless it is not refilled.
  AT_DEVICE static void release_weights(const Params& x, const Layout& smem, const ClusterCoord& me,
                                        const Progress& weights) {
    if (weights.used < 0 || weights.piece - 1 + x.weight_slots >= x.pieces()) return;
    const uint32_t empty = P::weight_pipeline(smem).empty_barrier(weights.used);
    if constexpr (P::kPeers == 1) {
      if (threadIdx.x == 0) ptx::mbarrier_arrive(empty);
    } else {
      if (threadIdx.x < P::kPeers) ptx::mbarrier_arrive_cluster(empty, ClusterCoord::rank(me.part, threadIdx.x));
    }
  }

  // Releases a stage of activations. The multiplying warpgroup and each adding warp call it; thread: index of the
  // caller's thread, of which the first kParts arrive, each at one block.
  AT_DEVICE static void release_fill(const Params& x, const Layout& smem, const ClusterCoord& me, int fill, int slot,
                                     int thread) {
    if (fill + x.fill_slots >= x.fills()) return;
    const Pipeline pipeline = P::fill_pipeline(smem);
    if constexpr (P::kParts == 1) {
      if (thread == 0) pipeline.consumer_release(slot);
    } else {
      if (thread < P::kParts) pipeline.consumer_release(slot, ClusterCoord::rank(thread, me.peer));
    }
  }

  // ---- The adding warps: zeros around the inner values, the pool, and the gate's weights. The consumers wait for the
  // first two when the first convolution is complete, for the gate's weights much later. ----

  AT_DEVICE static void add_up(const Params& x, const Layout& smem, const ClusterCoord& me) {
    constexpr int kVectors = P::kTileBytes / 16 / P::kWide;  // vectors of each thread
    const int thread = threadIdx.x - P::kWide;
    clear_lines(x, smem, thread);
    PipelineState ring{0, 0};
    int fill = 0;
    for (int chunk = 0; chunk < x.chunks; ++chunk) {
      float pooled[kVectors][P::kVector] = {};
#pragma unroll 1
      for (int tap = 0; tap < P::kTaps; ++tap, ++fill) {
        const uint32_t tile = smem.fills + ring.index * P::kTileBytes;
        P::fill_pipeline(smem).consumer_wait(ring);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          Pack<Element, P::kVector> read;
          read.words[0] = ptx::ld_shared(tile + (thread + i * P::kWide) * 16);
#pragma unroll
          for (int e = 0; e < P::kVector; ++e) pooled[i][e] += to_float(read.elements[e]);
        }
        __syncwarp();
        release_fill(x, smem, me, fill, ring.index, thread % 32);
        ring.advance(x.fill_slots);
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int e = 0; e < P::kVector; ++e) pooled[i][e] *= 1.f / P::kTaps;
        ptx::st_shared(P::own_copy(smem, me, chunk) + (thread + i * P::kWide) * 16,
                       rounded<Element>(pooled[i]).words[0]);
      }
    }
    ptx::fence_view_async_shared();
    ptx::named_barrier_arrive<P::kPooled, 2 * P::kWide>();
    const Excitation gate = P::excitation(x.hidden);
    gate.template load_weights<P::kWide>((char*)__cvta_shared_to_generic(smem.gate), x.p.p + P::kFirstGate,
                                         me.part * P::kN, x.k, thread);
    wait_for_all_copies();
    ptx::named_barrier_arrive<P::kGate, 2 * P::kWide>();
  }

  // ---- The multiplying warpgroup ----

  // The pixels of this thread's vectors, one in each half of its warp's rows.
  struct WarpCoord {
    int channel;   // the first, of the block's channels
    int row[2];    // of the tile: (line, image, column)
    int place[2];  // index of the pixel in the output, or -1
    int image[2], column[2];
    int partial[2];  // index of the row's partial sum
    AT_DEVICE WarpCoord(const Params& x, int tile) {
      const int lane = threadIdx.x % 32, warp = ptx::warp_uniform(threadIdx.x / 32);
      channel = 8 * (lane % 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        row[half] = 16 * warp + 8 * half + lane / 4;
        column[half] = row[half] % P::kQ, image[half] = row[half] / P::kQ % P::kImages;
        const int line = row[half] / (P::kQ * P::kImages), n = tile * P::kImages + image[half];
        place[half] = n < x.n ? (n * P::kP + line) * P::kQ + column[half] : -1;
        partial[half] = image[half] * P::kP + line;
      }
    }
  };

  AT_DEVICE static void solve(const Params& x, const Layout& smem, const ClusterCoord& me) {
    const WarpCoord coord(x, me.tile);
    const int first = me.part * P::kN;  // channel
    const Excitation gate = P::excitation(x.hidden);
    char* memory = (char*)__cvta_shared_to_generic(smem.gate);
    griddepcontrol_wait();

    Progress weights{ptx::descriptor_lo(smem.weights)};
    Sums sums, projected;
    ptx::warpgroup_fence_operand(sums);
    convolve_first(x, smem, me, weights, sums);
    ptx::named_barrier_sync<P::kPooled, 2 * P::kWide>();
    ptx::warpgroup_fence_operand(projected);
    for (int chunk = 0; chunk < x.chunks; ++chunk)
      multiply(x, smem, me, weights, ptx::descriptor_lo(P::own_copy(smem, me, chunk)), projected, chunk > 0);
    finish(x, smem, me, weights, projected);
    Excitation::sync();  // the pooled input is no longer needed
    write_inner(x, smem, me, coord, sums);
    ptx::fence_view_async_shared();
    Excitation::sync();
    if (P::kParts > 1 && threadIdx.x == 0) send_inner(x, smem, me);

    ptx::warpgroup_fence_operand(sums);
    convolve_second(x, smem, me, weights, sums);
    launch_dependents();
    ptx::named_barrier_sync<P::kGate, 2 * P::kWide>();
    excite(x, gate, memory, me, coord, smem.gate_full, sums);
    const float* gates = (const float*)(memory + gate.mean());
#pragma unroll
    for (int i = 0; i < 2 * P::kColumns; ++i) {
      const FragmentCoord at = fragment_coord<1>(i);
      if (coord.place[at.half] < 0) continue;
      const int own = coord.channel + at.channel(), channel = first + own;
      const int64_t offset = (int64_t)coord.place[at.half] * x.k + channel;
      float v[P::kVector], other[P::kVector];
      load_fragment(v, sums, at);
      load(other, gates + coord.image[at.half] * P::kN + own);
#pragma unroll
      for (int e = 0; e < P::kVector; ++e) v[e] *= other[e];
      Config::Steps::gated(v, x.p.p, x.scalars, channel);
      load_fragment(other, projected, at);
#pragma unroll
      for (int e = 0; e < P::kVector; ++e) v[e] += other[e];
      Config::Steps::apply(v, x.p.p, x.scalars, channel, offset);
      store(v, (Element*)x.p.p[P::kY] + offset);
    }
  }

  // Writes the lines of zeros above and below the images, in every copy.
  AT_DEVICE static void clear_lines(const Params& x, const Layout& smem, int thread) {
#pragma unroll 1
    for (int line = 0; line < P::kInner * P::kCopies * 2; ++line) {
      const uint32_t to = smem.inner + line / 2 * P::kCopyBytes + line % 2 * (P::kCopyBytes - P::kLineBytes);
      for (int i = 16 * thread; i < P::kLineBytes; i += 16 * P::kWide) ptx::st_shared(to + i, make_uint4(0, 0, 0, 0));
    }
  }

  AT_DEVICE static void convolve_first(const Params& x, const Layout& smem, const ClusterCoord& me, Progress& weights,
                                       Sums& sums) {
    const uint32_t fills = ptx::descriptor_lo(smem.fills);
    PipelineState ring{0, 0};
    int used = -1;
#pragma unroll 1
    for (int fill = 0; fill < x.fills(); ++fill, ring.advance(x.fill_slots)) {
      P::fill_pipeline(smem).consumer_wait(ring);
      multiply(x, smem, me, weights, fills + ring.index * (P::kTileBytes / 16), sums, fill > 0);
      if (used >= 0) release_fill(x, smem, me, fill - 1, used, threadIdx.x);
      used = ring.index;
    }
    finish(x, smem, me, weights, sums);
  }

  // Computes the second convolution, of the inner values of all blocks of the tile.
  AT_DEVICE static void convolve_second(const Params& x, const Layout& smem, const ClusterCoord& me, Progress& weights,
                                        Sums& sums) {
    for (int i = 0; i < P::kInner; ++i) {
      const int chunk = inner_chunk(me, i);
      if (P::kParts > 1 && i >= P::kOwn) ptx::mbarrier_wait(smem.inner_full + 8 * (chunk / P::kOwn), 0);
      uint32_t line = ptx::descriptor_lo(P::copy_of(smem, chunk, 0));
      for (int r = 0; r < 3; ++r, line += P::kLineBytes / 16)
        for (int s = 0; s < 3; ++s)
          multiply(x, smem, me, weights, line + s * (P::kCopyBytes / 16), sums, i + r + s > 0);
    }
    finish(x, smem, me, weights, sums);
  }

  // Writes the second convolution's input. Copy s holds at each column the value for tap s: that of column + s - 1, or
  // zero beyond the line. The swizzle is TMA's.
  AT_DEVICE static void write_inner(const Params& x, const Layout& smem, const ClusterCoord& me, const WarpCoord& coord,
                                    Sums& sums) {
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 2 * P::kColumns; ++i) {
      const FragmentCoord at = fragment_coord<1>(i);
      const int own = coord.channel + at.channel();
      float v[P::kVector];
      load_fragment(v, sums, at);
      Config::Steps::inner(v, x.p.p, x.scalars, me.part * P::kN + own);
      const uint4 value = rounded<Element>(v).words[0];
      const auto put = [&](int copy, int row, uint4 what) {
        const uint32_t to = P::own_copy(smem, me, own / P::kK * P::kCopies + copy);
        ptx::st_shared(to + row * P::kRowBytes + 16 * (own % P::kK / P::kVector ^ row % 8), what);
      };
      const int row = coord.row[at.half], last = P::kQ - 1;
      const bool begins = coord.column[at.half] == 0, ends = coord.column[at.half] == last;
      put(1, row, value);
      put(0, ends ? row - last : row + 1, ends ? zero : value);
      put(2, begins ? row + last : row - 1, begins ? zero : value);
    }
  }

  AT_DEVICE static void send_inner(const Params& x, const Layout& smem, const ClusterCoord& me) {
    for (int i = 1; i < P::kParts; ++i) {
      const int to = ClusterCoord::rank((me.part + i) % P::kParts, me.peer);
      for (int copy = 0; copy < P::kOwn * P::kCopies; ++copy) {
        const uint32_t place = P::own_copy(smem, me, copy);
        ptx::bulk_copy_dsmem(place, place, P::kTileBytes, smem.inner_full + 8 * me.part, to);
      }
    }
  }

  // Applies the steps before the gate, adds up each image's pixels, and computes the gates.
  AT_DEVICE static void excite(const Params& x, const Excitation& gate, char* memory, const ClusterCoord& me,
                               const WarpCoord& coord, uint32_t barrier, Sums& sums) {
#pragma unroll
    for (int columns = 0; columns < P::kColumns; ++columns) {
      const int own = coord.channel + 32 * columns;
      float v[2][P::kVector];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        load_fragment(v[half], sums, 0, half, columns);
        Config::Steps::before(v[half], x.p.p, x.scalars, me.part * P::kN + own);
        store_fragment(v[half], sums, 0, half, columns);
      }
      if constexpr (P::kImages == 1) {
        gate.collect(v, memory, ptx::warp_uniform(threadIdx.x / 32), own);
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          Excitation::leave_sums(v[half], gate.rows, (float*)memory + coord.partial[half] * P::kN + own);
      }
    }
    if constexpr (P::kParts == 1 && P::kImages == 1) gate.excite_image(memory);
    else
      gate.excite(memory, me.part * P::kN, x.k, me.part, barrier,
                  [&](int part) { return ClusterCoord::rank(part, me.peer); });
  }
};

}  // namespace at
