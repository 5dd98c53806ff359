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
#include "common/ptx/ptx.cuh"
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
  using ElementAccum = typename Config::ElementAccum;

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& params, char* memory) {
    const Layout smem(params, align_smem(ptx::cast_smem_ptr_to_uint(memory)));
    const int peer = P::kPeers > 1 ? (int)ptx::block_rank_in_cluster() : 0;
    // Peers, which share their weights, are neighbours in the grid. The column of tiles changes from cluster to
    // cluster.
    int column;
    const int tile = params.columns.divmod(blockIdx.x / P::kPeers, column) * P::kPeers + peer;
    const ClusterCoord cta{tile, column, peer};
    const int warp = ptx::warp_uniform(threadIdx.x / 32), group = warp / 4;
    prefetch_maps(params, warp - 4 * P::kGroups);
    init_barriers(params, smem, warp);
    if (threadIdx.x < P::kRowBytes / 16) ptx::st_shared(smem.zeros + 16 * threadIdx.x, make_uint4(0, 0, 0, 0));
    ptx::cluster_or_block_sync<P::kPeers>();

    if (group < P::kGroups) {
      solve(params, smem, cta, group);
    } else {
      if (ptx::elect_one_sync()) {
        if (warp == 4 * P::kGroups) load_images(params, smem, cta);
        else load_weights(params, smem, cta, warp - 4 * P::kGroups - 1);
      }
      __syncwarp();
    }
  }

 private:
  AT_DEVICE static void prefetch_maps(const Params& params, int loader) {
    if (loader == 0) {
      ptx::prefetch_tensormap(params.image_map);
      if constexpr (P::kProjects) ptx::prefetch_tensormap(params.skip_map);
    } else if (loader > 0) {
      ptx::prefetch_tensormap(params.weight_map);
      if constexpr (P::kFolded) ptx::prefetch_tensormap(params.hidden_map);
      if constexpr (P::kProjects) ptx::prefetch_tensormap(params.projection_map);
    }
  }

  AT_DEVICE static void init_barriers(const Params& params, const Layout& smem, int warp) {
    if (warp == 0) ptx::mbarrier_init_array(smem.full, params.chunks + params.skip_chunks, 1);
    else if (warp == 1) ptx::mbarrier_init_array(smem.weight_pipeline.full, P::kGroups * params.weight_stages, 1);
    else if (warp == 2)
      ptx::mbarrier_init_array(smem.weight_pipeline.empty, P::kGroups * params.weight_stages, P::kPeers);
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
  AT_DEVICE static int steps_of(const Params& params, int group) {
    return (params.chunks * P::kTaps - group + P::kGroups - 1) / P::kGroups;
  }
  AT_DEVICE static bool owns(int group) { return group < P::kOwners; }
  // The number of weight tiles that a warpgroup takes from its ring.
  AT_DEVICE static int pieces_of(const Params& params, int group) {
    return steps_of(params, group) + (owns(group) ? params.skip_chunks : 0);
  }

  // ---- Loads ----

  AT_DEVICE static void load_images(const Params& params, const Layout& smem, const ClusterCoord& cta) {
    const int image = cta.first_image(params);
    griddepcontrol_wait();
    AT_NO_UNROLL for (int chunk = 0; chunk < params.chunks; ++chunk) {
      const uint32_t full = smem.full + ptx::kMbarrierBytes * chunk, to = smem.images + chunk * P::kChunkBytes;
      ptx::mbarrier_arrive_expect_tx(full, P::kPlanes * params.plane_bytes);
      AT_UNROLL for (int plane = 0; plane < P::kPlanes; ++plane)
        ptx::tma_load_4d(to + plane * P::kPlaneBytes, params.image_map, full, chunk * P::kK, plane % P::kStride,
                         plane / P::kStride, image);
    }
    AT_NO_UNROLL for (int i = 0; i < params.skip_chunks; ++i) {
      const uint32_t full = smem.full + ptx::kMbarrierBytes * (params.chunks + i);
      ptx::mbarrier_arrive_expect_tx(full, params.plane_bytes);
      ptx::tma_load_2d<false>(smem.skip + i * P::kPlaneBytes, params.skip_map, full, i * P::kK, image * params.pixels,
                              0);
    }
    launch_dependents();
  }

  // A single thread issues the loads, so nothing hides the latency of its instructions. Its loop only increments.
  AT_DEVICE static void load_weights(const Params& params, const Layout& smem, const ClusterCoord& cta, int group) {
    constexpr uint16_t kAll = (1 << P::kPeers) - 1;
    const int first = group * params.weight_stages, steps = steps_of(params, group);
    const auto load = [&](PipelineState& ring, const void* map, int bytes, int rows, int chunk, int tap, int row) {
      const uint32_t full = smem.weight_pipeline.full_barrier(first + ring.index),
                     stage = smem.weights + (first + ring.index) * P::kWeightBytes;
      smem.weight_pipeline.producer_acquire({first + ring.index, ring.phase});
      ptx::mbarrier_arrive_expect_tx(full, bytes);
      ptx::tma_load_3d<(P::kPeers > 1)>(stage + cta.peer * rows * P::kRowBytes, map, full, chunk * P::kK, tap,
                                        row + cta.peer * rows, kAll);
      ring.advance(params.weight_stages);
      return stage;
    };
    PipelineState ring{0, 1};
    Step step(group);
    AT_NO_UNROLL for (int i = 0; i < steps; ++i, step.advance()) {
      const uint32_t full = smem.weight_pipeline.full_barrier(first + ring.index);
      const uint32_t stage =
          load(ring, params.weight_map, P::kWeightBytes, P::kN / P::kPeers, step.chunk, step.tap, cta.column * P::kN);
      if (P::kFolded && cta.peer == 0)
        ptx::tma_load_3d<(P::kPeers > 1)>(stage + P::kN * P::kRowBytes, params.hidden_map, full, step.chunk * P::kK,
                                          step.tap, 0, kAll);
    }
    if (P::kProjects && owns(group))
      for (int i = 0; i < params.skip_chunks; ++i)
        load(ring, params.projection_map, P::kOwn * P::kRowBytes, P::kOwn / P::kPeers, i, 0,
             cta.column * P::kN + group * P::kOwn);
    launch_dependents();
  }

  // The rows of a tile with pixels.
  AT_DEVICE static int rows_of(const Params& params) { return params.plane_bytes / P::kRowBytes; }

  // ---- Products ----

  // The pixel that a lane addresses for ldmatrix: a row of the warp's 16, and a half of 32 bytes of channels.
  struct Pixel {
    uint32_t row;   // in its plane
    uint32_t taps;  // bit t: tap t lies inside the image
    uint32_t half;
    AT_DEVICE explicit Pixel(const Params& params) {
      const int lane = threadIdx.x % 32;
      row = threadIdx.x % P::kWide / 32 * 16 + lane % 16, half = lane / 16;
      const int column = row % params.out_w, line = row / params.out_w % params.out_h;
      const auto inside = [](int line, int tap, int size) {
        return (unsigned)(line * P::kStride + tap - 1) < (unsigned)(size * P::kStride);
      };
      taps = 0;
      AT_UNROLL for (int tap = 0; tap < P::kTaps; ++tap)
        taps |= (uint32_t)(inside(line, tap / 3, params.out_h) && inside(column, tap % 3, params.out_w)) << tap;
      if (P::kPartial && (int)row >= rows_of(params)) taps = 0;  // its taps may lie beyond the image's memory
    }
  };

  static constexpr int kProducts = P::kRowBytes / 32;  // of a step: wgmma takes 32 bytes of each row
  // A warp's A operand: 16 rows of kK channels. A register has 4 bytes of a row, whether of two channels or of four.
  using Pixels = uint32_t[kProducts][4];
  using Accum = ElementAccum[1][P::kColumns / 2];

  // Stride 2, along one axis: a tap reads the plane of even or of odd positions, at this position or the one before.
  AT_DEVICE static int plane_of(int tap) { return P::kStride == 1 ? 0 : tap != 1; }
  AT_DEVICE static int shift_of(int tap) { return P::kStride == 1 ? tap - 1 : -(tap == 0); }

  AT_DEVICE static void read(const Params& params, const Layout& smem, const Pixel& pixel, const Step& step,
                             Pixels& to) {
    ptx::mbarrier_wait(smem.full + ptx::kMbarrierBytes * step.chunk, 0);
    const int r = step.tap * 11 >> 5, s = step.tap - 3 * r;
    const uint32_t plane =
        smem.images + step.chunk * P::kChunkBytes + (plane_of(r) * P::kStride + plane_of(s)) * P::kPlaneBytes;
    const uint32_t row = pixel.row + shift_of(r) * params.out_w + shift_of(s);
    const uint32_t from = pixel.taps >> step.tap & 1 ? plane + row * P::kRowBytes : smem.zeros;
    const uint32_t first = (pixel.half ^ row % 8) * 16;  // TMA's swizzle
    AT_UNROLL for (int i = 0; i < kProducts; ++i)
      load_matrices(to[i], from + (first ^ 32 * i));
  }

  // A warpgroup's position in its ring of weights.
  struct Progress {
    int first;  // its first stage among all rings' stages
    PipelineState ring{0, 0};
    int piece = 0, pending = -1;  // used: a stage whose products may be unfinished, or -1
  };

  // Releases the stage whose products are complete, unless it is not refilled.
  AT_DEVICE static void release(const Layout& smem, Progress& weights, int stages, int pieces) {
    const bool again = weights.pending >= 0 && weights.piece - 1 + stages < pieces;
    const uint32_t empty = smem.weight_pipeline.empty_barrier(weights.first + weights.pending);
    const int thread = threadIdx.x % P::kWide;
    if constexpr (P::kPeers == 1) {
      if (again && thread == 0) ptx::mbarrier_arrive(empty);
    } else {
      if (again && thread < P::kPeers) ptx::mbarrier_arrive_cluster(empty, thread);
    }
  }

  // Issues the products of a step, waits for those of the step before, and reads the pixels of the next step.
  AT_DEVICE static void take_step(const Params& params, const Layout& smem, const Pixel& pixel, Progress& weights,
                                  int pieces, const Pixels& now, Pixels& next, const Step& next_step, bool accumulate,
                                  Accum& accum) {
    const uint32_t hi = ptx::descriptor_hi<P::kRowBytes>(8 * P::kRowBytes), stage = weights.first + weights.ring.index;
    const uint32_t b = ptx::descriptor_lo(smem.weights) + stage * (P::kWeightBytes / 16);
    // Float32 registers take over the sums of e4m3 products; the other warpgroup multiplies meanwhile.
    bool taken = false;
    if constexpr (Config::kPromote > 0) {
      taken = weights.piece % Config::kPromote == 0;
      if (taken) promote(accum, weights.piece == 0);
    }
    smem.weight_pipeline.consumer_wait({(int)stage, weights.ring.phase});
    ptx::warpgroup_arrive();
    AT_UNROLL for (int i = 0; i < kProducts; ++i)
      Config::wgmma(accum[0], now[i], ptx::SmemDescriptor{b + 2 * i, hi}, (accumulate && !taken) || i);
    ptx::warpgroup_commit_batch();
    ptx::warpgroup_wait<1>();
    release(smem, weights, params.weight_stages, pieces);
    weights.pending = weights.ring.index;
    weights.ring.advance(params.weight_stages), ++weights.piece;
    read(params, smem, pixel, next_step, next);
  }

  // Computes this warpgroup's sums of a tile.
  AT_DEVICE static void convolve(const Params& params, const Layout& smem, Progress& weights, int group, int pieces,
                                 Accum& accum) {
    const Pixel pixel(params);
    const int steps = steps_of(params, group);
    Pixels even, odd;
    Step step(group);
    int left = steps;
    // After the last step the pixels of an existing step are read again.
    const auto advance = [&] {
      if (--left > 0) step.advance();
    };
    read(params, smem, pixel, step, even);
    ptx::warpgroup_fence_operand(accum);
    AT_NO_UNROLL for (int i = 0; i + 1 < steps; i += 2) {
      advance();
      take_step(params, smem, pixel, weights, pieces, even, odd, step, i > 0, accum);
      advance();
      take_step(params, smem, pixel, weights, pieces, odd, even, step, true, accum);
    }
    if (steps % 2) take_step(params, smem, pixel, weights, pieces, even, odd, step, steps > 1, accum);
    ptx::warpgroup_wait<0>();
    ptx::warpgroup_fence_operand(accum);
    release(smem, weights, params.weight_stages, pieces);
    weights.pending = -1;
  }

  // ---- The end of a tile ----

  using OwnAccum = ElementAccum[1][(P::kOwn + P::kHidden) / 2];

  // Computes the projection of this warpgroup's channels.
  AT_DEVICE static void project(const Params& params, const Layout& smem, Progress& weights, int pieces,
                                ElementAccum (&accum)[1][P::kOwn / 2]) {
    const uint32_t hi = ptx::descriptor_hi<P::kRowBytes>(8 * P::kRowBytes);
    ptx::warpgroup_fence_operand(accum);
    AT_NO_UNROLL for (int chunk = 0; chunk < params.skip_chunks; ++chunk) {
      const uint32_t a = ptx::descriptor_lo(smem.skip) + chunk * (P::kPlaneBytes / 16),
                     stage = weights.first + weights.ring.index;
      const uint32_t b = ptx::descriptor_lo(smem.weights) + stage * (P::kWeightBytes / 16);
      ptx::mbarrier_wait(smem.full + ptx::kMbarrierBytes * (params.chunks + chunk), 0);
      smem.weight_pipeline.consumer_wait({(int)stage, weights.ring.phase});
      ptx::warpgroup_arrive();
      AT_UNROLL for (int i = 0; i < kProducts; ++i)
        Config::wgmma(accum[0], ptx::SmemDescriptor{a + 2 * i, hi}, ptx::SmemDescriptor{b + 2 * i, hi}, chunk || i);
      ptx::warpgroup_commit_batch();
      ptx::warpgroup_wait<0>();
      weights.pending = weights.ring.index;
      weights.ring.advance(params.weight_stages), ++weights.piece;
      release(smem, weights, params.weight_stages, pieces);
    }
    ptx::warpgroup_fence_operand(accum);
  }

  AT_DEVICE static uint32_t sums_of(const Layout& smem, int owner, int four) {
    return smem.sums + (owner * P::kFours + four) * P::kFoursBytes + threadIdx.x % P::kWide * 16;
  }

  // A sum that warpgroup `owner` finishes: of its channels, then of the hidden values, which both need.
  AT_DEVICE static ElementAccum sum_of(const Accum& accum, int owner, int i) {
    if (i >= P::kOwn / 2) return accum[0][(P::kN - P::kOwn) / 2 + i];
    return owner ? accum[0][(P::kN - P::kOwn) / 2 + i] : accum[0][i];
  }

  // Sums of any type travel between warpgroups as floats with the same bits.
  AT_DEVICE static float bits_of(float sum) { return sum; }
  AT_DEVICE static float bits_of(int sum) { return __int_as_float(sum); }
  AT_DEVICE static float added(float sum, float bits) { return sum + bits; }
  AT_DEVICE static int added(int sum, float bits) { return sum + __float_as_int(bits); }

  AT_DEVICE static void leave_sums(const Layout& smem, int group, const Accum& accum) {
    const int other = P::kGroups - 1 - group;
    AT_UNROLL for (int i = 0; i < P::kFours; ++i) {
      float v[4];
      AT_UNROLL for (int e = 0; e < 4; ++e)
        v[e] = bits_of(sum_of(accum, other, 4 * i + e));
      ptx::st_shared(sums_of(smem, other, i), make_float4(v[0], v[1], v[2], v[3]));
    }
  }

  AT_DEVICE static void gather_sums(const Layout& smem, int group, const Accum& accum, OwnAccum& own) {
    AT_UNROLL for (int i = 0; i < P::kFours; ++i) {
      const float4 other = ptx::ld_shared_float4(sums_of(smem, group, i));
      const float v[4] = {other.x, other.y, other.z, other.w};
      AT_UNROLL for (int e = 0; e < 4; ++e)
        own[0][4 * i + e] = added(sum_of(accum, group, 4 * i + e), v[e]);
    }
  }

  AT_DEVICE static void solve(const Params& params, const Layout& smem, const ClusterCoord& cta, int group) {
    const int pieces = pieces_of(params, group), first_channel = cta.column * P::kN + group * P::kOwn;
    const Folded gate{params.pixels, params.hidden, params.pixel_weight, params.slabs,
                      (char*)__cvta_shared_to_generic(smem.gates) + group * Folded::kBytes};
    if constexpr (P::kFolded)
      if (owns(group))
        gate.load_weights(params.p.p + P::kFirstGate + 1, first_channel, params.k, threadIdx.x % P::kWide);
    griddepcontrol_wait();
    Progress weights{group * params.weight_stages};
    Accum accum;
    convolve(params, smem, weights, group, pieces, accum);
    launch_dependents();
    if (P::kOwners > 1 || !owns(group)) leave_sums(smem, group, accum);
    if (!owns(group)) return ptx::named_barrier_arrive<P::kExchange, P::kWide * P::kGroups>();

    typename Config::Steps::Fetched fetched[P::kVectors];
    each_vector(params, cta, first_channel, [&](int i, FragmentCoord, int, int64_t offset, bool in_bounds) {
      if (in_bounds) Config::Steps::fetch(fetched[i], params.p.p, offset);
    });
    ElementAccum projected[1][P::kOwn / 2];
    if constexpr (P::kProjects) project(params, smem, weights, pieces, projected);
    OwnAccum own;
    ptx::named_barrier_sync<P::kExchange, P::kWide * P::kGroups>();
    gather_sums(smem, group, accum, own);
    if constexpr (P::kFolded) {
      each_vector(params, cta, first_channel, [&](int, FragmentCoord at, int channel, int64_t, bool) {
        float v[P::kVector];
        load_fragment(v, own, at);
        Config::Steps::before(v, params.p.p, params.scalars, channel);
        store_fragment(v, own, at);
      });
      gate.scale(own, 0, [&] { ptx::named_barrier_sync<P::kWide>(P::kGate + group); });
    }
    each_vector(params, cta, first_channel, [&](int i, FragmentCoord at, int channel, int64_t offset, bool in_bounds) {
      float v[P::kVector], more[P::kVector];
      load_fragment(v, own, at);
      if constexpr (P::kProjects) {
        load_fragment(more, projected, at);
        AT_UNROLL for (int e = 0; e < P::kVector; ++e)
          v[e] += more[e];
      }
      if (!Config::kStores || in_bounds)
        Config::Steps::apply(v, params.p.p, params.scalars, channel, offset, fetched[i]);
      if (in_bounds) store(v, (Element*)params.p.p[P::kY] + offset);
    });
  }

  // Calls work(index, coord, channel, offset, inside) for this thread's vectors. Vectors outside the output are
  // computed too, with a channel that exists: with a branch per vector each would wait for its own operands.
  template <typename Work>
  AT_DEVICE static void each_vector(const Params& params, const ClusterCoord& cta, int first_channel,
                                    const Work& work) {
    const int lane = threadIdx.x % 32, row_0 = cta.first_image(params) * params.pixels,
              row = row_0 + threadIdx.x % P::kWide / 32 * 16 + fragment_row(lane);
    // The last tile ends with the last image, so it may begin within the tile before it. Only one of them stores a
    // pixel: its rows lie elsewhere in the tile, and the compiler may contract multiply-adds there differently (1 ulp).
    const int first_own = cta.tile * params.images * params.pixels;
    AT_UNROLL for (int i = 0; i < P::kVectors; ++i) {
      const FragmentCoord at = fragment_coord<1>(i);
      const int pixel = row + at.row(), own = first_channel + at.channel() + fragment_channel(lane),
                channel = min(own, params.k - P::kVector);
      const bool is_pixel = P::kPartial ? pixel - row_0 < rows_of(params) : pixel < params.rows;
      const bool in_bounds = pixel >= first_own && is_pixel && own < params.k;
      work(i, at, channel, (int64_t)pixel * params.k + channel, in_bounds);
    }
  }
};

}  // namespace at
