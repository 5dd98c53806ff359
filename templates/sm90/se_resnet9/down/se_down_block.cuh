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
#include "common/ptx/ptx.cuh"
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

  AT_DEVICE static void run(const Params& params, char* memory) {
    const Layout smem(params, align_smem(ptx::cast_smem_ptr_to_uint(memory)));
    const int rank = P::kCluster > 1 ? (int)ptx::block_rank_in_cluster() : 0;
    const ClusterCoord cta{rank % P::kParts, rank / P::kParts,
                           (int)blockIdx.x / P::kCluster * P::kPeers + rank / P::kParts};
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    const bool images = warp == P::kWide / 16;
    if (warp >= P::kWide / 16) ptx::prefetch_tensormap(images ? params.image_map : params.weight_maps[0]);
    init_barriers(params, smem, cta, warp);
    ptx::cluster_or_block_sync<P::kCluster>();

    if (warp < P::kWide / 32) {
      solve(params, smem, cta);
    } else if (warp < P::kWide / 16) {
      add_up(params, smem, cta);
    } else {
      if (ptx::elect_one_sync()) {
        if (images) load_images(params, smem, cta);
        else load_weights(params, smem, cta);
      }
      __syncwarp();
    }
  }

 private:
  // Each warp initializes one kind of barrier.
  AT_DEVICE static void init_barriers(const Params& params, const Layout& smem, const ClusterCoord& cta, int warp) {
    if (warp == 0) {
      ptx::mbarrier_init_array(smem.full, params.activation_stages, 1);
      ptx::mbarrier_init_array(smem.gate_full, 1, 1);
    } else if (warp == 1) {
      ptx::mbarrier_init_array(smem.empty, params.activation_stages,
                               (1 + P::kWide / 32) * P::kParts);  // the multiplying warpgroup, each adding warp
    } else if (warp == 2) {
      ptx::mbarrier_init_array(smem.weight_full, params.weight_stages, 1);
      ptx::mbarrier_init_array(smem.inner_full, P::kParts, 1);
    } else if (warp == 3) {
      ptx::mbarrier_init_array(smem.weight_empty, params.weight_stages, P::kPeers);
    }
    ptx::fence_barrier_init();
    const int part = threadIdx.x % 32;
    if (warp == 2 && part < P::kParts && part != cta.part)
      ptx::mbarrier_arrive_expect_tx(smem.inner_full + ptx::kMbarrierBytes * part,
                                     P::kOwn * P::kCopies * P::kTileBytes);
  }

  // ---- Loads. A stage that is not refilled is not released, so no arrival goes to a block that has exited. ----

  AT_DEVICE static void load_images(const Params& params, const Layout& smem, const ClusterCoord& cta) {
    const uint16_t parts = ((1 << P::kParts) - 1) << ClusterCoord::rank(0, cta.peer);
    const int first = cta.part * (P::kP / P::kParts);  // its first line
    PipelineState ring{0, 1};
    griddepcontrol_wait();
    AT_NO_UNROLL for (int chunk = 0; chunk < params.chunks; ++chunk) AT_NO_UNROLL
      for (int r = 0; r < 3; ++r) AT_NO_UNROLL
        for (int s = 0; s < 3; ++s, ring.advance(params.activation_stages)) {
          const uint32_t full = P::activation_pipeline(smem).producer_acquire(ring);
          ptx::mbarrier_arrive_expect_tx(full, P::kTileBytes);
          ptx::tma_load_4d<(P::kParts > 1)>(smem.k_blocks + ring.index * P::kTileBytes + first * P::kLineBytes,
                                            params.image_map, full, chunk * P::kK, s - 1, cta.tile * P::kImages,
                                            2 * first + r - 1, parts);
        }
  }

  AT_DEVICE static void load_weights(const Params& params, const Layout& smem, const ClusterCoord& cta) {
    constexpr int kRows = P::kN / P::kPeers;
    uint16_t peers = 0;
    for (int i = 0; i < P::kPeers; ++i) peers |= 1 << ClusterCoord::rank(cta.part, i);
    PipelineState ring{0, 1};
    const auto load = [&](int map, int chunk, int tap) {
      const uint32_t full = P::weight_pipeline(smem).producer_acquire(ring);
      ptx::mbarrier_arrive_expect_tx(full, P::kWeightBytes);
      ptx::tma_load_3d<(P::kPeers > 1)>(smem.weights + ring.index * P::kWeightBytes + cta.peer * kRows * P::kRowBytes,
                                        params.weight_maps[map], full, chunk * P::kK, tap,
                                        cta.part * P::kN + cta.peer * kRows, peers);
      ring.advance(params.weight_stages);
    };
    const auto load_taps = [&](int map, int chunk) {
      AT_NO_UNROLL for (int tap = 0; tap < P::kTaps; ++tap)
        load(map, chunk, tap);
    };
    AT_NO_UNROLL for (int i = 0; i < params.chunks; ++i)
      load_taps(0, i);
    ptx::prefetch_tensormap(params.weight_maps[2]);
    AT_NO_UNROLL for (int i = 0; i < params.chunks; ++i)
      load(1, i, 0);
    AT_NO_UNROLL for (int i = 0; i < P::kInner; ++i)
      load_taps(2, inner_chunk(cta, i));
  }

  // The second convolution starts with the block's own channels, which need no exchange.
  AT_DEVICE static int inner_chunk(const ClusterCoord& cta, int i) { return (cta.part * P::kOwn + i) % P::kInner; }

  // ---- Products ----

  using Accum = float[1][P::kN / 2];

  // The multiplying warpgroup's position in the ring of weights.
  struct Progress {
    uint32_t lo;  // SmemDescriptor::lo of the ring's first stage
    PipelineState ring{0, 0};
    int piece = 0, pending = -1;  // used: a stage whose products may be unfinished, or -1
  };

  // Adds the product of the tile at `a` (SmemDescriptor::lo) with the next weights, and waits for the product before.
  AT_DEVICE static void multiply(const Params& params, const Layout& smem, const ClusterCoord& cta, Progress& weights,
                                 uint32_t a, Accum& accum, bool accumulate) {
    const uint32_t hi = ptx::descriptor_hi<P::kRowBytes>(8 * P::kRowBytes),
                   b = weights.lo + weights.ring.index * (P::kWeightBytes / 16);
    P::weight_pipeline(smem).consumer_wait(weights.ring);
    ptx::warpgroup_arrive();
    AT_UNROLL for (int k = 0; k < P::kK / 16; ++k)
      Config::wgmma(accum[0], ptx::SmemDescriptor{a + 2 * k, hi}, ptx::SmemDescriptor{b + 2 * k, hi}, accumulate || k);
    ptx::warpgroup_commit_batch();
    ptx::warpgroup_wait<1>();
    release_weights(params, smem, cta, weights);
    weights.pending = weights.ring.index;
    weights.ring.advance(params.weight_stages), ++weights.piece;
  }

  // Waits for all products and releases the last stage of weights.
  AT_DEVICE static void finish(const Params& params, const Layout& smem, const ClusterCoord& cta, Progress& weights,
                               Accum& accum) {
    ptx::warpgroup_wait<0>();
    ptx::warpgroup_fence_operand(accum);
    release_weights(params, smem, cta, weights);
    weights.pending = -1;
  }

  // Releases the stage of weights whose products are complete, unless it is not refilled.
  AT_DEVICE static void release_weights(const Params& params, const Layout& smem, const ClusterCoord& cta,
                                        const Progress& weights) {
    if (weights.pending < 0 || weights.piece - 1 + params.weight_stages >= params.pieces()) return;
    const uint32_t empty = P::weight_pipeline(smem).empty_barrier(weights.pending);
    if constexpr (P::kPeers == 1) {
      if (threadIdx.x == 0) ptx::mbarrier_arrive(empty);
    } else {
      if (threadIdx.x < P::kPeers) ptx::mbarrier_arrive_cluster(empty, ClusterCoord::rank(cta.part, threadIdx.x));
    }
  }

  // Releases a stage of activations. The multiplying warpgroup and each adding warp call it; thread: index of the
  // caller's thread, of which the first kParts arrive, each at one block.
  AT_DEVICE static void release_activations(const Params& params, const Layout& smem, const ClusterCoord& cta,
                                            int k_block, int stage, int thread) {
    if (k_block + params.activation_stages >= params.k_blocks()) return;
    const Pipeline pipeline = P::activation_pipeline(smem);
    if constexpr (P::kParts == 1) {
      if (thread == 0) pipeline.consumer_release(stage);
    } else {
      if (thread < P::kParts) pipeline.consumer_release(stage, ClusterCoord::rank(thread, cta.peer));
    }
  }

  // ---- The adding warps: zeros around the inner values, the pool, and the gate's weights. The consumers wait for the
  // first two when the first convolution is complete, for the gate's weights much later. ----

  AT_DEVICE static void add_up(const Params& params, const Layout& smem, const ClusterCoord& cta) {
    constexpr int kVectors = P::kTileBytes / 16 / P::kWide;  // vectors of each thread
    const int thread = threadIdx.x - P::kWide;
    clear_lines(params, smem, thread);
    PipelineState ring{0, 0};
    int k_block = 0;
    for (int chunk = 0; chunk < params.chunks; ++chunk) {
      float pooled[kVectors][P::kVector] = {};
      AT_NO_UNROLL for (int tap = 0; tap < P::kTaps; ++tap, ++k_block) {
        const uint32_t tile = smem.k_blocks + ring.index * P::kTileBytes;
        P::activation_pipeline(smem).consumer_wait(ring);
        AT_UNROLL for (int i = 0; i < kVectors; ++i) {
          Pack<Element, P::kVector> read;
          read.words[0] = ptx::ld_shared(tile + (thread + i * P::kWide) * 16);
          AT_UNROLL for (int e = 0; e < P::kVector; ++e)
            pooled[i][e] += to_float(read.elements[e]);
        }
        __syncwarp();
        release_activations(params, smem, cta, k_block, ring.index, thread % 32);
        ring.advance(params.activation_stages);
      }
      AT_UNROLL for (int i = 0; i < kVectors; ++i) {
        AT_UNROLL for (int e = 0; e < P::kVector; ++e)
          pooled[i][e] *= 1.f / P::kTaps;
        ptx::st_shared(P::own_copy(smem, cta, chunk) + (thread + i * P::kWide) * 16,
                       rounded<Element>(pooled[i]).words[0]);
      }
    }
    ptx::fence_view_async_shared();
    ptx::named_barrier_arrive<P::kPooled, 2 * P::kWide>();
    const Excitation gate = P::excitation(params.hidden);
    gate.template load_weights<P::kWide>((char*)__cvta_shared_to_generic(smem.gate), params.p.p + P::kFirstGate,
                                         cta.part * P::kN, params.k, thread);
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
    AT_DEVICE WarpCoord(const Params& params, int tile) {
      const int lane = threadIdx.x % 32, warp = ptx::warp_uniform(threadIdx.x / 32);
      channel = 8 * (lane % 4);
      AT_UNROLL for (int half = 0; half < 2; ++half) {
        row[half] = 16 * warp + 8 * half + lane / 4;
        column[half] = row[half] % P::kQ, image[half] = row[half] / P::kQ % P::kImages;
        const int line = row[half] / (P::kQ * P::kImages), n = tile * P::kImages + image[half];
        place[half] = n < params.n ? (n * P::kP + line) * P::kQ + column[half] : -1;
        partial[half] = image[half] * P::kP + line;
      }
    }
  };

  AT_DEVICE static void solve(const Params& params, const Layout& smem, const ClusterCoord& cta) {
    const WarpCoord coord(params, cta.tile);
    const int first = cta.part * P::kN;  // channel
    const Excitation gate = P::excitation(params.hidden);
    char* memory = (char*)__cvta_shared_to_generic(smem.gate);
    griddepcontrol_wait();

    Progress weights{ptx::descriptor_lo(smem.weights)};
    Accum accum, projected;
    ptx::warpgroup_fence_operand(accum);
    convolve_first(params, smem, cta, weights, accum);
    ptx::named_barrier_sync<P::kPooled, 2 * P::kWide>();
    ptx::warpgroup_fence_operand(projected);
    for (int chunk = 0; chunk < params.chunks; ++chunk)
      multiply(params, smem, cta, weights, ptx::descriptor_lo(P::own_copy(smem, cta, chunk)), projected, chunk > 0);
    finish(params, smem, cta, weights, projected);
    Excitation::sync();  // the pooled input is no longer needed
    write_inner(params, smem, cta, coord, accum);
    ptx::fence_view_async_shared();
    Excitation::sync();
    if (P::kParts > 1 && threadIdx.x == 0) send_inner(params, smem, cta);

    ptx::warpgroup_fence_operand(accum);
    convolve_second(params, smem, cta, weights, accum);
    launch_dependents();
    ptx::named_barrier_sync<P::kGate, 2 * P::kWide>();
    excite(params, gate, memory, cta, coord, smem.gate_full, accum);
    const float* gates = (const float*)(memory + gate.mean());
    AT_UNROLL for (int i = 0; i < 2 * P::kColumns; ++i) {
      const FragmentCoord at = fragment_coord<1>(i);
      if (coord.place[at.half] < 0) continue;
      const int own = coord.channel + at.channel(), channel = first + own;
      const int64_t offset = (int64_t)coord.place[at.half] * params.k + channel;
      float v[P::kVector], other[P::kVector];
      load_fragment(v, accum, at);
      load(other, gates + coord.image[at.half] * P::kN + own);
      AT_UNROLL for (int e = 0; e < P::kVector; ++e)
        v[e] *= other[e];
      Config::Steps::gated(v, params.p.p, params.scalars, channel);
      load_fragment(other, projected, at);
      AT_UNROLL for (int e = 0; e < P::kVector; ++e)
        v[e] += other[e];
      Config::Steps::apply(v, params.p.p, params.scalars, channel, offset);
      store(v, (Element*)params.p.p[P::kY] + offset);
    }
  }

  // Writes the lines of zeros above and below the images, in every copy.
  AT_DEVICE static void clear_lines(const Params& params, const Layout& smem, int thread) {
    AT_NO_UNROLL for (int line = 0; line < P::kInner * P::kCopies * 2; ++line) {
      const uint32_t to = smem.inner + line / 2 * P::kCopyBytes + line % 2 * (P::kCopyBytes - P::kLineBytes);
      for (int i = 16 * thread; i < P::kLineBytes; i += 16 * P::kWide) ptx::st_shared(to + i, make_uint4(0, 0, 0, 0));
    }
  }

  AT_DEVICE static void convolve_first(const Params& params, const Layout& smem, const ClusterCoord& cta,
                                       Progress& weights, Accum& accum) {
    const uint32_t k_blocks = ptx::descriptor_lo(smem.k_blocks);
    PipelineState ring{0, 0};
    int pending = -1;
    AT_NO_UNROLL for (int k_block = 0; k_block < params.k_blocks(); ++k_block, ring.advance(params.activation_stages)) {
      P::activation_pipeline(smem).consumer_wait(ring);
      multiply(params, smem, cta, weights, k_blocks + ring.index * (P::kTileBytes / 16), accum, k_block > 0);
      if (pending >= 0) release_activations(params, smem, cta, k_block - 1, pending, threadIdx.x);
      pending = ring.index;
    }
    finish(params, smem, cta, weights, accum);
  }

  // Computes the second convolution, of the inner values of all blocks of the tile.
  AT_DEVICE static void convolve_second(const Params& params, const Layout& smem, const ClusterCoord& cta,
                                        Progress& weights, Accum& accum) {
    for (int i = 0; i < P::kInner; ++i) {
      const int chunk = inner_chunk(cta, i);
      if (P::kParts > 1 && i >= P::kOwn)
        ptx::mbarrier_wait(smem.inner_full + ptx::kMbarrierBytes * (chunk / P::kOwn), 0);
      uint32_t line = ptx::descriptor_lo(P::copy_of(smem, chunk, 0));
      for (int r = 0; r < 3; ++r, line += P::kLineBytes / 16)
        for (int s = 0; s < 3; ++s)
          multiply(params, smem, cta, weights, line + s * (P::kCopyBytes / 16), accum, i + r + s > 0);
    }
    finish(params, smem, cta, weights, accum);
  }

  // Writes the second convolution's input. Copy s holds at each column the value for tap s: that of column + s - 1, or
  // zero beyond the line. The swizzle is TMA's.
  AT_DEVICE static void write_inner(const Params& params, const Layout& smem, const ClusterCoord& cta,
                                    const WarpCoord& coord, Accum& accum) {
    const uint4 zero = make_uint4(0, 0, 0, 0);
    AT_UNROLL for (int i = 0; i < 2 * P::kColumns; ++i) {
      const FragmentCoord at = fragment_coord<1>(i);
      const int own = coord.channel + at.channel();
      float v[P::kVector];
      load_fragment(v, accum, at);
      Config::Steps::inner(v, params.p.p, params.scalars, cta.part * P::kN + own);
      const uint4 value = rounded<Element>(v).words[0];
      const auto put = [&](int copy, int row, uint4 what) {
        const uint32_t to = P::own_copy(smem, cta, own / P::kK * P::kCopies + copy);
        ptx::st_shared(to + row * P::kRowBytes + 16 * (own % P::kK / P::kVector ^ row % 8), what);
      };
      const int row = coord.row[at.half], last = P::kQ - 1;
      const bool begins = coord.column[at.half] == 0, ends = coord.column[at.half] == last;
      put(1, row, value);
      put(0, ends ? row - last : row + 1, ends ? zero : value);
      put(2, begins ? row + last : row - 1, begins ? zero : value);
    }
  }

  AT_DEVICE static void send_inner(const Params& params, const Layout& smem, const ClusterCoord& cta) {
    for (int i = 1; i < P::kParts; ++i) {
      const int to = ClusterCoord::rank((cta.part + i) % P::kParts, cta.peer);
      for (int copy = 0; copy < P::kOwn * P::kCopies; ++copy) {
        const uint32_t place = P::own_copy(smem, cta, copy);
        ptx::bulk_copy_dsmem(place, place, P::kTileBytes, smem.inner_full + ptx::kMbarrierBytes * cta.part, to);
      }
    }
  }

  // Applies the steps before the gate, adds up each image's pixels, and computes the gates.
  AT_DEVICE static void excite(const Params& params, const Excitation& gate, char* memory, const ClusterCoord& cta,
                               const WarpCoord& coord, uint32_t barrier, Accum& accum) {
    AT_UNROLL for (int columns = 0; columns < P::kColumns; ++columns) {
      const int own = coord.channel + 32 * columns;
      float v[2][P::kVector];
      AT_UNROLL for (int half = 0; half < 2; ++half) {
        load_fragment(v[half], accum, 0, half, columns);
        Config::Steps::before(v[half], params.p.p, params.scalars, cta.part * P::kN + own);
        store_fragment(v[half], accum, 0, half, columns);
      }
      if constexpr (P::kImages == 1) {
        gate.collect(v, memory, ptx::warp_uniform(threadIdx.x / 32), own);
      } else {
        AT_UNROLL for (int half = 0; half < 2; ++half)
          Excitation::leave_sums(v[half], gate.rows, (float*)memory + coord.partial[half] * P::kN + own);
      }
    }
    if constexpr (P::kParts == 1 && P::kImages == 1) gate.excite_image(memory);
    else
      gate.excite(memory, cta.part * P::kN, params.k, cta.part, barrier,
                  [&](int part) { return ClusterCoord::rank(part, cta.peer); });
  }
};

}  // namespace at
