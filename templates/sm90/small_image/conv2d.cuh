// A 3 x 3 convolution of small images for Hopper, stride 1 or 2, padding 1, NHWC. A tile is 64 / (p q) whole images;
// with elements of one byte they may leave rows of it empty.
//
// Small tiles are bound by their loads, and a filter of nine taps loads every pixel nine times. Here a tile's images
// come into shared memory once and stay. wgmma's descriptors cannot address a tap there: a group of eight rows spans
// lines of several images, and pixels beyond a border must be zero. So the A operand comes from registers. ldmatrix
// takes an address from each lane, so a tap is an address, and beyond a border it is that of a row of zeros. With
// stride 2 TMA loads four planes, of odd and even lines and columns, so that rows that are read together are neighbours
// in different banks.
//
// Two warpgroups take the steps (a tap of 128 bytes of channels) in turn, each with sums of its own for the whole tile:
// one warpgroup alone waits about as long around its products as for them. Each has a ring of weights and a warp that
// fills it. kPeers tiles of a cluster share these loads by multicast. While its products run, a warpgroup reads the
// pixels of its next step. At the end each warpgroup gets the other's sums of half of the channels and finishes these:
// the gates of a folded squeeze (folded_se_gate.cuh), the projection of a skip connection, the epilogue's steps.
//
// Each arrival at an `empty` barrier has a matching wait: stages that are not refilled are not released. plan.cuh has
// prepare().
#pragma once
#include "sm90/fragment.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/wgmma.cuh"
#include "sm90/conv2d/promoted_sum.cuh"
#include "sm90/small_image/plan.cuh"

namespace at {

template <typename Config>
struct HopperImageConv2d : HopperImagePlan<Config> {
  using P = HopperImagePlan<Config>;
  using Element = typename P::Element;
  using Folded = typename P::Folded;
  using Layout = typename P::Layout;
  using ClusterCoord = typename P::ClusterCoord;
  using Params = typename P::Params;
  using Sum = typename Config::Sum;

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& x, char* memory) {
    const Layout smem(x, (ptx::cast_smem_ptr_to_uint(memory) + 1023) / 1024 * 1024);
    const int peer = P::kPeers > 1 ? (int)ptx::block_rank_in_cluster() : 0;
    // Peers, which share their weights, are neighbours in the grid. The column of tiles changes from cluster to
    // cluster.
    int column;
    const int tile = x.columns.divmod(blockIdx.x / P::kPeers, column) * P::kPeers + peer;
    const ClusterCoord me{tile, column, peer};
    const int warp = ptx::warp_uniform(threadIdx.x / 32), group = warp / 4;
    prefetch_maps(x, warp - 4 * P::kGroups);
    init_barriers(x, smem, warp);
    if (threadIdx.x < P::kRowBytes / 16) ptx::st_shared(smem.zeros + 16 * threadIdx.x, make_uint4(0, 0, 0, 0));
    ptx::cluster_or_block_sync<P::kPeers>();

    if (group < P::kGroups) {
      solve(x, smem, me, group);
    } else {
      if (ptx::elect_one_sync()) {
        if (warp == 4 * P::kGroups) load_images(x, smem, me);
        else load_weights(x, smem, me, warp - 4 * P::kGroups - 1);
      }
      __syncwarp();
    }
  }

 private:
  AT_DEVICE static void prefetch_maps(const Params& x, int loader) {
    if (loader == 0) {
      ptx::prefetch_tensormap(x.image_map);
      if constexpr (P::kProjects) ptx::prefetch_tensormap(x.skip_map);
    } else if (loader > 0) {
      ptx::prefetch_tensormap(x.weight_map);
      if constexpr (P::kFolded) ptx::prefetch_tensormap(x.hidden_map);
      if constexpr (P::kProjects) ptx::prefetch_tensormap(x.projection_map);
    }
  }

  AT_DEVICE static void init_barriers(const Params& x, const Layout& smem, int warp) {
    if (warp == 0) ptx::mbarrier_init_array(smem.full, x.chunks + x.skip_chunks, 1);
    else if (warp == 1) ptx::mbarrier_init_array(smem.weight_full, P::kGroups * x.weight_slots, 1);
    else if (warp == 2) ptx::mbarrier_init_array(smem.weight_empty, P::kGroups * x.weight_slots, P::kPeers);
    ptx::fence_barrier_init();
  }

  // A tap of kK channels, in the order in which a warpgroup visits them: every kGroups-th.
  struct Step {
    int chunk = 0, tap;
    AT_DEVICE Step(int group) : tap(group) {}
    AT_DEVICE void advance() {
      tap += P::kGroups;
      if (tap >= P::kTaps) tap -= P::kTaps, ++chunk;
    }
  };
  AT_DEVICE static int steps_of(const Params& x, int group) {
    return (x.chunks * P::kTaps - group + P::kGroups - 1) / P::kGroups;
  }
  AT_DEVICE static bool owns(int group) { return group < P::kOwners; }
  // The number of weight tiles that a warpgroup takes from its ring.
  AT_DEVICE static int pieces_of(const Params& x, int group) {
    return steps_of(x, group) + (owns(group) ? x.skip_chunks : 0);
  }

  // ---- Loads ----

  AT_DEVICE static void load_images(const Params& x, const Layout& smem, const ClusterCoord& me) {
    const int image = me.first_image(x);
    griddepcontrol_wait();
#pragma unroll 1
    for (int chunk = 0; chunk < x.chunks; ++chunk) {
      const uint32_t full = smem.full + 8 * chunk, to = smem.images + chunk * P::kChunkBytes;
      ptx::mbarrier_arrive_expect_tx(full, P::kPlanes * x.plane_bytes);
#pragma unroll
      for (int plane = 0; plane < P::kPlanes; ++plane)
        ptx::tma_load_4d(to + plane * P::kPlaneBytes, x.image_map, full, chunk * P::kK, plane % P::kStride,
                         plane / P::kStride, image);
    }
#pragma unroll 1
    for (int i = 0; i < x.skip_chunks; ++i) {
      const uint32_t full = smem.full + 8 * (x.chunks + i);
      ptx::mbarrier_arrive_expect_tx(full, x.plane_bytes);
      ptx::tma_load_2d<false>(smem.skip + i * P::kPlaneBytes, x.skip_map, full, i * P::kK, image * x.pixels, 0);
    }
    launch_dependents();
  }

  // A single thread issues the loads, so nothing hides the latency of its instructions. Its loop only increments.
  AT_DEVICE static void load_weights(const Params& x, const Layout& smem, const ClusterCoord& me, int group) {
    constexpr uint16_t kAll = (1 << P::kPeers) - 1;
    const int first = group * x.weight_slots, steps = steps_of(x, group);
    const auto load = [&](PipelineState& ring, const void* map, int bytes, int rows, int chunk, int tap, int row) {
      const uint32_t full = P::weight_pipeline(smem).full_barrier(first + ring.index),
                     slot = smem.weights + (first + ring.index) * P::kWeightBytes;
      P::weight_pipeline(smem).producer_acquire({first + ring.index, ring.phase});
      ptx::mbarrier_arrive_expect_tx(full, bytes);
      ptx::tma_load_3d<(P::kPeers > 1)>(slot + me.peer * rows * P::kRowBytes, map, full, chunk * P::kK, tap,
                                        row + me.peer * rows, kAll);
      ring.advance(x.weight_slots);
      return slot;
    };
    PipelineState ring{0, 1};
    Step step(group);
#pragma unroll 1
    for (int i = 0; i < steps; ++i, step.advance()) {
      const uint32_t full = P::weight_pipeline(smem).full_barrier(first + ring.index);
      const uint32_t slot =
          load(ring, x.weight_map, P::kWeightBytes, P::kN / P::kPeers, step.chunk, step.tap, me.column * P::kN);
      if (P::kFolded && me.peer == 0)
        ptx::tma_load_3d<(P::kPeers > 1)>(slot + P::kN * P::kRowBytes, x.hidden_map, full, step.chunk * P::kK, step.tap,
                                          0, kAll);
    }
    if (P::kProjects && owns(group))
      for (int i = 0; i < x.skip_chunks; ++i)
        load(ring, x.projection_map, P::kOwn * P::kRowBytes, P::kOwn / P::kPeers, i, 0,
             me.column * P::kN + group * P::kOwn);
    launch_dependents();
  }

  // The rows of a tile with pixels.
  AT_DEVICE static int rows_of(const Params& x) { return x.plane_bytes / P::kRowBytes; }

  // ---- Products ----

  // The pixel that a lane addresses for ldmatrix: a row of the warp's 16, and a half of 32 bytes of channels.
  struct Pixel {
    uint32_t row;   // in its plane
    uint32_t taps;  // bit t: tap t lies inside the image
    uint32_t half;
    AT_DEVICE explicit Pixel(const Params& x) {
      const int lane = threadIdx.x % 32;
      row = threadIdx.x % P::kWide / 32 * 16 + lane % 16, half = lane / 16;
      const int column = row % x.out_w, line = row / x.out_w % x.out_h;
      const auto inside = [](int line, int tap, int size) {
        return (unsigned)(line * P::kStride + tap - 1) < (unsigned)(size * P::kStride);
      };
      taps = 0;
#pragma unroll
      for (int tap = 0; tap < P::kTaps; ++tap)
        taps |= (uint32_t)(inside(line, tap / 3, x.out_h) && inside(column, tap % 3, x.out_w)) << tap;
      if (P::kPartial && (int)row >= rows_of(x)) taps = 0;  // its taps may lie beyond the image's memory
    }
  };

  static constexpr int kProducts = P::kRowBytes / 32;  // of a step: wgmma takes 32 bytes of each row
  // A warp's A operand: 16 rows of kK channels. A register has 4 bytes of a row, whether of two channels or of four.
  using Pixels = uint32_t[kProducts][4];
  using Sums = Sum[1][P::kColumns / 2];

  // Stride 2, along one axis: a tap reads the plane of even or of odd positions, at this position or the one before.
  AT_DEVICE static int plane_of(int tap) { return P::kStride == 1 ? 0 : tap != 1; }
  AT_DEVICE static int shift_of(int tap) { return P::kStride == 1 ? tap - 1 : -(tap == 0); }

  AT_DEVICE static void read(const Params& x, const Layout& smem, const Pixel& pixel, const Step& step, Pixels& to) {
    ptx::mbarrier_wait(smem.full + 8 * step.chunk, 0);
    const int r = step.tap * 11 >> 5, s = step.tap - 3 * r;
    const uint32_t plane =
        smem.images + step.chunk * P::kChunkBytes + (plane_of(r) * P::kStride + plane_of(s)) * P::kPlaneBytes;
    const uint32_t row = pixel.row + shift_of(r) * x.out_w + shift_of(s);
    const uint32_t from = pixel.taps >> step.tap & 1 ? plane + row * P::kRowBytes : smem.zeros;
    const uint32_t first = (pixel.half ^ row % 8) * 16;  // TMA's swizzle
#pragma unroll
    for (int i = 0; i < kProducts; ++i) load_matrices(to[i], from + (first ^ 32 * i));
  }

  // A warpgroup's position in its ring of weights.
  struct Progress {
    int first;  // its first stage among all rings' stages
    PipelineState ring{0, 0};
    int piece = 0, used = -1;  // used: a stage whose products may be unfinished, or -1
  };

  // Releases the stage whose products are complete, unless it is not refilled.
  AT_DEVICE static void release(const Layout& smem, Progress& weights, int slots, int pieces) {
    const bool again = weights.used >= 0 && weights.piece - 1 + slots < pieces;
    const uint32_t empty = P::weight_pipeline(smem).empty_barrier(weights.first + weights.used);
    const int thread = threadIdx.x % P::kWide;
    if constexpr (P::kPeers == 1) {
      if (again && thread == 0) ptx::mbarrier_arrive(empty);
    } else {
      if (again && thread < P::kPeers) ptx::mbarrier_arrive_cluster(empty, thread);
    }
  }

  // Issues the products of a step, waits for those of the step before, and reads the pixels of the next step.
  AT_DEVICE static void take_step(const Params& x, const Layout& smem, const Pixel& pixel, Progress& weights,
                                  int pieces, const Pixels& now, Pixels& next, const Step& next_step, bool accumulate,
                                  Sums& sums) {
    const uint32_t hi = ptx::descriptor_hi<P::kRowBytes>(8 * P::kRowBytes), slot = weights.first + weights.ring.index;
    const uint32_t b = ptx::descriptor_lo(smem.weights) + slot * (P::kWeightBytes / 16);
    // Float32 registers take over the sums of e4m3 products; the other warpgroup multiplies meanwhile.
    bool taken = false;
    if constexpr (Config::kPromote > 0) {
      taken = weights.piece % Config::kPromote == 0;
      if (taken) promote(sums, weights.piece == 0);
    }
    P::weight_pipeline(smem).consumer_wait({(int)slot, weights.ring.phase});
    ptx::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < kProducts; ++i)
      Config::wgmma(sums[0], now[i], ptx::SmemDescriptor{b + 2 * i, hi}, (accumulate && !taken) || i);
    ptx::warpgroup_commit_batch();
    ptx::warpgroup_wait<1>();
    release(smem, weights, x.weight_slots, pieces);
    weights.used = weights.ring.index;
    weights.ring.advance(x.weight_slots), ++weights.piece;
    read(x, smem, pixel, next_step, next);
  }

  // Computes this warpgroup's sums of a tile.
  AT_DEVICE static void convolve(const Params& x, const Layout& smem, Progress& weights, int group, int pieces,
                                 Sums& sums) {
    const Pixel pixel(x);
    const int steps = steps_of(x, group);
    Pixels even, odd;
    Step step(group);
    int left = steps;
    // After the last step the pixels of an existing step are read again.
    const auto advance = [&] {
      if (--left > 0) step.advance();
    };
    read(x, smem, pixel, step, even);
    ptx::warpgroup_fence_operand(sums);
#pragma unroll 1
    for (int i = 0; i + 1 < steps; i += 2) {
      advance();
      take_step(x, smem, pixel, weights, pieces, even, odd, step, i > 0, sums);
      advance();
      take_step(x, smem, pixel, weights, pieces, odd, even, step, true, sums);
    }
    if (steps % 2) take_step(x, smem, pixel, weights, pieces, even, odd, step, steps > 1, sums);
    ptx::warpgroup_wait<0>();
    ptx::warpgroup_fence_operand(sums);
    release(smem, weights, x.weight_slots, pieces);
    weights.used = -1;
  }

  // ---- The end of a tile ----

  using OwnSums = Sum[1][(P::kOwn + P::kHidden) / 2];

  // Computes the projection of this warpgroup's channels.
  AT_DEVICE static void project(const Params& x, const Layout& smem, Progress& weights, int pieces,
                                Sum (&sums)[1][P::kOwn / 2]) {
    const uint32_t hi = ptx::descriptor_hi<P::kRowBytes>(8 * P::kRowBytes);
    ptx::warpgroup_fence_operand(sums);
#pragma unroll 1
    for (int chunk = 0; chunk < x.skip_chunks; ++chunk) {
      const uint32_t a = ptx::descriptor_lo(smem.skip) + chunk * (P::kPlaneBytes / 16),
                     slot = weights.first + weights.ring.index;
      const uint32_t b = ptx::descriptor_lo(smem.weights) + slot * (P::kWeightBytes / 16);
      ptx::mbarrier_wait(smem.full + 8 * (x.chunks + chunk), 0);
      P::weight_pipeline(smem).consumer_wait({(int)slot, weights.ring.phase});
      ptx::warpgroup_arrive();
#pragma unroll
      for (int i = 0; i < kProducts; ++i)
        Config::wgmma(sums[0], ptx::SmemDescriptor{a + 2 * i, hi}, ptx::SmemDescriptor{b + 2 * i, hi}, chunk || i);
      ptx::warpgroup_commit_batch();
      ptx::warpgroup_wait<0>();
      weights.used = weights.ring.index;
      weights.ring.advance(x.weight_slots), ++weights.piece;
      release(smem, weights, x.weight_slots, pieces);
    }
    ptx::warpgroup_fence_operand(sums);
  }

  AT_DEVICE static uint32_t sums_of(const Layout& smem, int owner, int four) {
    return smem.sums + (owner * P::kFours + four) * P::kFoursBytes + threadIdx.x % P::kWide * 16;
  }

  // A sum that warpgroup `owner` finishes: of its channels, then of the hidden values, which both need.
  AT_DEVICE static Sum sum_of(const Sums& sums, int owner, int i) {
    if (i >= P::kOwn / 2) return sums[0][(P::kN - P::kOwn) / 2 + i];
    return owner ? sums[0][(P::kN - P::kOwn) / 2 + i] : sums[0][i];
  }

  // Sums of any type travel between warpgroups as floats with the same bits.
  AT_DEVICE static float bits_of(float sum) { return sum; }
  AT_DEVICE static float bits_of(int sum) { return __int_as_float(sum); }
  AT_DEVICE static float added(float sum, float bits) { return sum + bits; }
  AT_DEVICE static int added(int sum, float bits) { return sum + __float_as_int(bits); }

  AT_DEVICE static void leave_sums(const Layout& smem, int group, const Sums& sums) {
    const int other = P::kGroups - 1 - group;
#pragma unroll
    for (int i = 0; i < P::kFours; ++i) {
      float v[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] = bits_of(sum_of(sums, other, 4 * i + e));
      ptx::st_shared(sums_of(smem, other, i), make_float4(v[0], v[1], v[2], v[3]));
    }
  }

  AT_DEVICE static void gather_sums(const Layout& smem, int group, const Sums& sums, OwnSums& own) {
#pragma unroll
    for (int i = 0; i < P::kFours; ++i) {
      const float4 other = ptx::ld_shared_float4(sums_of(smem, group, i));
      const float v[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) own[0][4 * i + e] = added(sum_of(sums, group, 4 * i + e), v[e]);
    }
  }

  AT_DEVICE static void solve(const Params& x, const Layout& smem, const ClusterCoord& me, int group) {
    const int pieces = pieces_of(x, group), first_channel = me.column * P::kN + group * P::kOwn;
    const Folded gate{x.pixels, x.hidden, x.pixel_weight, x.slabs,
                      (char*)__cvta_shared_to_generic(smem.gates) + group * Folded::kBytes};
    if constexpr (P::kFolded)
      if (owns(group)) gate.load_weights(x.p.p + P::kFirstGate + 1, first_channel, x.k, threadIdx.x % P::kWide);
    griddepcontrol_wait();
    Progress weights{group * x.weight_slots};
    Sums sums;
    convolve(x, smem, weights, group, pieces, sums);
    launch_dependents();
    if (P::kOwners > 1 || !owns(group)) leave_sums(smem, group, sums);
    if (!owns(group)) return ptx::named_barrier_arrive<P::kExchange, P::kWide * P::kGroups>();

    typename Config::Steps::Fetched fetched[P::kVectors];
    each_vector(x, me, first_channel, [&](int i, FragmentCoord, int, int64_t offset, bool there) {
      if (there) Config::Steps::fetch(fetched[i], x.p.p, offset);
    });
    Sum projected[1][P::kOwn / 2];
    if constexpr (P::kProjects) project(x, smem, weights, pieces, projected);
    OwnSums own;
    ptx::named_barrier_sync<P::kExchange, P::kWide * P::kGroups>();
    gather_sums(smem, group, sums, own);
    if constexpr (P::kFolded) {
      each_vector(x, me, first_channel, [&](int, FragmentCoord at, int channel, int64_t, bool) {
        float v[P::kVector];
        load_fragment(v, own, at);
        Config::Steps::before(v, x.p.p, x.scalars, channel);
        store_fragment(v, own, at);
      });
      gate.scale(own, 0, [&] { ptx::named_barrier_sync<P::kWide>(P::kGate + group); });
    }
    each_vector(x, me, first_channel, [&](int i, FragmentCoord at, int channel, int64_t offset, bool there) {
      float v[P::kVector], more[P::kVector];
      load_fragment(v, own, at);
      if constexpr (P::kProjects) {
        load_fragment(more, projected, at);
#pragma unroll
        for (int e = 0; e < P::kVector; ++e) v[e] += more[e];
      }
      if (!Config::kStores || there) Config::Steps::apply(v, x.p.p, x.scalars, channel, offset, fetched[i]);
      if (there) store(v, (Element*)x.p.p[P::kY] + offset);
    });
  }

  // Calls work(index, coord, channel, offset, inside) for this thread's vectors. Vectors outside the output are
  // computed too, with a channel that exists: with a branch per vector each would wait for its own operands.
  template <typename Work>
  AT_DEVICE static void each_vector(const Params& x, const ClusterCoord& me, int first_channel, const Work& work) {
    const int lane = threadIdx.x % 32, row_0 = me.first_image(x) * x.pixels,
              row = row_0 + threadIdx.x % P::kWide / 32 * 16 + fragment_row(lane);
    // The last tile ends with the last image, so it may begin within the tile before it. Only one of them stores a
    // pixel: its rows lie elsewhere in the tile, and the compiler may contract multiply-adds there differently (1 ulp).
    const int first_own = me.tile * x.images * x.pixels;
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      const FragmentCoord at = fragment_coord<1>(i);
      const int pixel = row + at.row(), own = first_channel + at.channel() + fragment_channel(lane),
                channel = min(own, x.k - P::kVector);
      const bool is_pixel = P::kPartial ? pixel - row_0 < rows_of(x) : pixel < x.rows;
      const bool there = pixel >= first_own && is_pixel && own < x.k;
      work(i, at, channel, (int64_t)pixel * x.k + channel, there);
    }
  }
};

}  // namespace at
