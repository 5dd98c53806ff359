// A 3x3 convolution of small images for Hopper, stride 1 or 2, padding 1: of 64 / (p q) whole images a tile, NHWC.
//
// Small tiles wait for their loads, and a filter of nine taps loads every pixel nine times. Here a tile's images come into
// shared memory once and stay. wgmma could not read a tap there: its groups of eight rows are lines of several images, and
// what lies beyond a border must be zero. But it takes its first operand from registers too, and ldmatrix, which brings it
// there, reads each row from where a lane says: so a tap is an address in every lane, beyond a border that of a row of zeros.
// With stride 2 the images come as four planes, of odd and even lines and columns, so that rows that are read together are
// neighbours, and lie in different banks.
//
// Two warpgroups take the steps (a tap of 64 channels) by turns, each with sums of its own for the whole tile: a warpgroup
// alone waits about as long around its products as for them. Each has a ring of weights and a warp that fills it; kPeers
// tiles of a cluster share these loads by multicast. While its products run a warpgroup reads the pixels of its next step.
// In the end each gets the other's sums of half of the channels, and finishes these alone: the gates of a folded squeeze
// (folded_gate.cuh), the projection of a skip connection, the epilogue's steps.
//
// Every hand-shake is awaited by somebody: buffers that nobody will fill again are not given back.
// image_plan.cuh has what comes before the launch.
#pragma once
#include "sm90/counting.cuh"
#include "sm90/image_plan.cuh"

namespace at {

template <typename Config>
struct HopperImageConv2d : HopperImagePlan<Config> {
  using Plan = HopperImagePlan<Config>;
  using typename Plan::Element, typename Plan::Folded, typename Plan::Layout, typename Plan::Member, typename Plan::Params;
  using Plan::kChunkBytes, Plan::kColumns, Plan::kExchange, Plan::kFirstGate, Plan::kFolded, Plan::kFours, Plan::kFoursBytes;
  using Plan::kGate, Plan::kGroups, Plan::kHidden, Plan::kK, Plan::kN, Plan::kOwn, Plan::kOwners, Plan::kPeers;
  using Plan::kPlaneBytes, Plan::kPlanes, Plan::kProjects, Plan::kRowBytes, Plan::kStride, Plan::kTaps, Plan::kUnits;
  using Plan::kVector, Plan::kWeightBytes, Plan::kWide, Plan::kY;

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& x, char* memory) {
    const Layout at(x, (hopper::shared_address(memory) + 1023) / 1024 * 1024);
    const int peer = kPeers > 1 ? (int)hopper::rank_in_cluster() : 0;
    // Peers, which share their weights, are neighbours in the grid; the column changes from cluster to cluster.
    int column;
    const int tile = x.columns.split(blockIdx.x / kPeers, column) * kPeers + peer;
    const Member me{tile, column, peer};
    const int warp = hopper::uniform(threadIdx.x / 32), group = warp / 4;
    prefetch_maps(x, warp - 4 * kGroups);
    init_barriers(x, at, warp);
    if (threadIdx.x < kRowBytes / 16) hopper::write(at.zeros + 16 * threadIdx.x, make_uint4(0, 0, 0, 0));
    hopper::sync_all<kPeers>();

    if (group < kGroups) {
      solve(x, at, me, group);
    } else {
      if (hopper::elect()) {
        if (warp == 4 * kGroups) load_images(x, at, me);
        else load_weights(x, at, me, warp - 4 * kGroups - 1);
      }
      __syncwarp();
    }
  }

 private:
  AT_DEVICE static void prefetch_maps(const Params& x, int loader) {
    if (loader == 0) {
      hopper::prefetch_map(x.image_map);
      if constexpr (kProjects) hopper::prefetch_map(x.skip_map);
    } else if (loader > 0) {
      hopper::prefetch_map(x.weight_map);
      if constexpr (kFolded) hopper::prefetch_map(x.hidden_map);
      if constexpr (kProjects) hopper::prefetch_map(x.projection_map);
    }
  }

  AT_DEVICE static void init_barriers(const Params& x, const Layout& at, int warp) {
    if (warp == 0) hopper::init_barriers(at.full, x.chunks + x.skip_chunks, 1);
    else if (warp == 1) hopper::init_barriers(at.weight_full, kGroups * x.weight_slots, 1);
    else if (warp == 2) hopper::init_barriers(at.weight_empty, kGroups * x.weight_slots, kPeers);
    hopper::publish_barriers();
  }

  // A tap of 64 channels, in the order in which a warpgroup takes them: every other one.
  struct Step {
    int chunk = 0, tap;
    AT_DEVICE Step(int group) : tap(group) {}
    AT_DEVICE void advance() {
      tap += kGroups;
      if (tap >= kTaps) tap -= kTaps, ++chunk;
    }
  };
  AT_DEVICE static int steps_of(const Params& x, int group) { return (x.chunks * kTaps - group + kGroups - 1) / kGroups; }
  AT_DEVICE static bool owns(int group) { return group < kOwners; }
  // What a warpgroup takes from its ring.
  AT_DEVICE static int pieces_of(const Params& x, int group) { return steps_of(x, group) + (owns(group) ? x.skip_chunks : 0); }

  // ---- Loads ----

  AT_DEVICE static void load_images(const Params& x, const Layout& at, const Member& me) {
    const int image = me.first_image(x);
    wait_for_previous();
#pragma unroll 1
    for (int chunk = 0; chunk < x.chunks; ++chunk) {
      const uint32_t full = at.full + 8 * chunk, to = at.images + chunk * kChunkBytes;
      hopper::expect_bytes(full, kPlanes * x.plane_bytes);
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
        hopper::load_4d(to + plane * kPlaneBytes, x.image_map, full, chunk * kK, plane % kStride, plane / kStride, image);
    }
#pragma unroll 1
    for (int i = 0; i < x.skip_chunks; ++i) {
      const uint32_t full = at.full + 8 * (x.chunks + i);
      hopper::expect_bytes(full, x.plane_bytes);
      hopper::load_2d<false>(at.skip + i * kPlaneBytes, x.skip_map, full, i * kK, image * x.pixels, 0);
    }
    launch_next();
  }

  // A loading thread is alone: nothing hides how long its instructions take, so its loop only counts on.
  AT_DEVICE static void load_weights(const Params& x, const Layout& at, const Member& me, int group) {
    constexpr uint16_t kAll = (1 << kPeers) - 1;
    const int first = group * x.weight_slots, steps = steps_of(x, group);
    const auto load = [&](Ring& ring, const void* map, int bytes, int rows, int chunk, int tap, int row) {
      const uint32_t full = at.weight_full + 8 * (first + ring.slot), slot = at.weights + (first + ring.slot) * kWeightBytes;
      hopper::wait(at.weight_empty + 8 * (first + ring.slot), ring.parity);
      hopper::expect_bytes(full, bytes);
      hopper::load_3d<(kPeers > 1)>(slot + me.peer * rows * kRowBytes, map, full, chunk * kK, tap, row + me.peer * rows, kAll);
      ring.advance(x.weight_slots);
      return slot;
    };
    Ring ring{0, 1};
    Step step(group);
#pragma unroll 1
    for (int i = 0; i < steps; ++i, step.advance()) {
      const uint32_t full = at.weight_full + 8 * (first + ring.slot);
      const uint32_t slot = load(ring, x.weight_map, kWeightBytes, kN / kPeers, step.chunk, step.tap, me.column * kN);
      if (kFolded && me.peer == 0)
        hopper::load_3d<(kPeers > 1)>(slot + kN * kRowBytes, x.hidden_map, full, step.chunk * kK, step.tap, 0, kAll);
    }
    if (kProjects && owns(group))
      for (int i = 0; i < x.skip_chunks; ++i)
        load(ring, x.projection_map, kOwn * kRowBytes, kOwn / kPeers, i, 0, me.column * kN + group * kOwn);
    launch_next();
  }

  // ---- Products ----

  // A thread's pixel of a tile as ldmatrix wants it: the lane's row of a warp's 16, and its half of 16 channels.
  struct Pixel {
    uint32_t row;    // of a plane
    uint32_t taps;   // a bit for each tap that lies inside the image
    uint32_t half;
    AT_DEVICE explicit Pixel(const Params& x) {
      const int lane = threadIdx.x % 32;
      row = threadIdx.x % kWide / 32 * 16 + lane % 16, half = lane / 16;
      const int column = row % x.out_w, line = row / x.out_w % x.out_h;
      const auto inside = [](int at, int tap, int size) { return (unsigned)(at * kStride + tap - 1) < (unsigned)(size * kStride); };
      taps = 0;
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap)
        taps |= (uint32_t)(inside(line, tap / 3, x.out_h) && inside(column, tap % 3, x.out_w)) << tap;
    }
  };

  using Pixels = uint32_t[kK / 16][4];  // of a warp: 16 rows of 64 channels
  using Sums = float[1][kColumns / 2];

  // Along one axis, with stride 2: a tap finds the plane of even or odd places, one place back or not.
  AT_DEVICE static int plane_of(int tap) { return kStride == 1 ? 0 : tap != 1; }
  AT_DEVICE static int shift_of(int tap) { return kStride == 1 ? tap - 1 : -(tap == 0); }

  AT_DEVICE static void read(const Params& x, const Layout& at, const Pixel& pixel, const Step& step, Pixels& to) {
    hopper::wait(at.full + 8 * step.chunk, 0);
    const int r = step.tap * 11 >> 5, s = step.tap - 3 * r;
    const uint32_t plane = at.images + step.chunk * kChunkBytes + (plane_of(r) * kStride + plane_of(s)) * kPlaneBytes;
    const uint32_t row = pixel.row + shift_of(r) * x.out_w + shift_of(s);
    const uint32_t from = pixel.taps >> step.tap & 1 ? plane + row * kRowBytes : at.zeros;
    const uint32_t first = (pixel.half ^ row % 8) * 16;  // as TMA swizzles it
#pragma unroll
    for (int i = 0; i < kK / 16; ++i) load_matrices(to[i], from + (first ^ 32 * i));
  }

  // How far a warpgroup is with its ring of weights.
  struct Progress {
    int first;  // its slots among all
    Ring ring{0, 0};
    int piece = 0, used = -1;  // used: a slot whose products may not be over
  };

  // Tells all who fill it that the slot last used is free.
  AT_DEVICE static void release(const Layout& at, Progress& weights, int slots, int pieces) {
    const bool again = weights.used >= 0 && weights.piece - 1 + slots < pieces;
    const uint32_t empty = at.weight_empty + 8 * (weights.first + weights.used);
    const int thread = threadIdx.x % kWide;
    if constexpr (kPeers == 1) {
      if (again && thread == 0) hopper::arrive(empty);
    } else {
      if (again && thread < kPeers) hopper::arrive_at(empty, thread);
    }
  }

  // Begins the products of a step, then waits for those of the step before and reads the pixels of the next.
  AT_DEVICE static void take_step(const Params& x, const Layout& at, const Pixel& pixel, Progress& weights, int pieces,
                                  const Pixels& now, Pixels& next, const Step& next_step, bool accumulate, Sums& sums) {
    const uint32_t high = hopper::high<kRowBytes>(8 * kRowBytes), slot = weights.first + weights.ring.slot;
    const uint32_t b = hopper::low(at.weights) + slot * (kWeightBytes / 16);
    hopper::wait(at.weight_full + 8 * slot, weights.ring.parity);
    hopper::begin_products();
#pragma unroll
    for (int i = 0; i < kK / 16; ++i)
      Config::multiply(sums[0], now[i], hopper::descriptor(b + 2 * i, high), accumulate || i);
    hopper::commit_products();
    hopper::wait_for_products<1>();
    release(at, weights, x.weight_slots, pieces);
    weights.used = weights.ring.slot;
    weights.ring.advance(x.weight_slots), ++weights.piece;
    read(x, at, pixel, next_step, next);
  }

  // This warpgroup's sums of a tile.
  AT_DEVICE static void convolve(const Params& x, const Layout& at, Progress& weights, int group, int pieces, Sums& sums) {
    const Pixel pixel(x);
    const int steps = steps_of(x, group);
    Pixels even, odd;
    Step step(group);
    int left = steps;
    // Behind the last the pixels of a step that there is are read again.
    const auto advance = [&] {
      if (--left > 0) step.advance();
    };
    read(x, at, pixel, step, even);
    hopper::pin(sums);
#pragma unroll 1
    for (int i = 0; i + 1 < steps; i += 2) {
      advance();
      take_step(x, at, pixel, weights, pieces, even, odd, step, i > 0, sums);
      advance();
      take_step(x, at, pixel, weights, pieces, odd, even, step, true, sums);
    }
    if (steps % 2) take_step(x, at, pixel, weights, pieces, even, odd, step, steps > 1, sums);
    hopper::wait_for_products<0>();
    hopper::pin(sums);
    release(at, weights, x.weight_slots, pieces);
    weights.used = -1;
  }

  // ---- The end of a tile ----

  using OwnSums = float[1][(kOwn + kHidden) / 2];

  // The projection of this warpgroup's channels.
  AT_DEVICE static void project(const Params& x, const Layout& at, Progress& weights, int pieces, float (&sums)[1][kOwn / 2]) {
    const uint32_t high = hopper::high<kRowBytes>(8 * kRowBytes);
    hopper::pin(sums);
#pragma unroll 1
    for (int chunk = 0; chunk < x.skip_chunks; ++chunk) {
      const uint32_t a = hopper::low(at.skip) + chunk * (kPlaneBytes / 16), slot = weights.first + weights.ring.slot;
      const uint32_t b = hopper::low(at.weights) + slot * (kWeightBytes / 16);
      hopper::wait(at.full + 8 * (x.chunks + chunk), 0);
      hopper::wait(at.weight_full + 8 * slot, weights.ring.parity);
      hopper::begin_products();
#pragma unroll
      for (int i = 0; i < kK / 16; ++i)
        Config::multiply(sums[0], hopper::descriptor(a + 2 * i, high), hopper::descriptor(b + 2 * i, high), chunk || i);
      hopper::commit_products();
      hopper::wait_for_products<0>();
      weights.used = weights.ring.slot;
      weights.ring.advance(x.weight_slots), ++weights.piece;
      release(at, weights, x.weight_slots, pieces);
    }
    hopper::pin(sums);
  }

  AT_DEVICE static uint32_t sums_of(const Layout& at, int owner, int four) {
    return at.sums + (owner * kFours + four) * kFoursBytes + threadIdx.x % kWide * 16;
  }

  // Of what an owner finishes: its channels, then the hidden values, which all want.
  AT_DEVICE static float sum_of(const Sums& sums, int owner, int i) {
    if (i >= kOwn / 2) return sums[0][(kN - kOwn) / 2 + i];
    return owner ? sums[0][(kN - kOwn) / 2 + i] : sums[0][i];
  }

  AT_DEVICE static void leave_sums(const Layout& at, int group, const Sums& sums) {
    const int other = kGroups - 1 - group;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      float v[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] = sum_of(sums, other, 4 * i + e);
      hopper::write(sums_of(at, other, i), make_float4(v[0], v[1], v[2], v[3]));
    }
  }

  AT_DEVICE static void gather_sums(const Layout& at, int group, const Sums& sums, OwnSums& own) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const float4 other = hopper::load_own(sums_of(at, group, i));
      const float v[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) own[0][4 * i + e] = sum_of(sums, group, 4 * i + e) + v[e];
    }
  }

  AT_DEVICE static void solve(const Params& x, const Layout& at, const Member& me, int group) {
    const int pieces = pieces_of(x, group), first_channel = me.column * kN + group * kOwn;
    const Folded gate{x.pixels, x.hidden, x.pixel_weight, x.slabs,
                      (char*)__cvta_shared_to_generic(at.gates) + group * Folded::kBytes};
    if constexpr (kFolded)
      if (owns(group)) gate.load_weights(x.p.p + kFirstGate + 1, first_channel, x.k, threadIdx.x % kWide);
    wait_for_previous();
    Progress weights{group * x.weight_slots};
    Sums sums;
    convolve(x, at, weights, group, pieces, sums);
    launch_next();
    if (kOwners > 1 || !owns(group)) leave_sums(at, group, sums);
    if (!owns(group)) return hopper::arrive_at_meeting<kExchange, kWide * kGroups>();

    typename Config::Steps::Fetched fetched[kUnits];
    each_unit(x, me, first_channel, [&](int i, int, int, int, int64_t offset, bool there) {
      if (there) Config::Steps::fetch(fetched[i], x.p.p, offset);
    });
    float projected[1][kOwn / 2];
    if constexpr (kProjects) project(x, at, weights, pieces, projected);
    OwnSums own;
    hopper::meet<kExchange, kWide * kGroups>();
    gather_sums(at, group, sums, own);
    if constexpr (kFolded) {
      each_unit(x, me, first_channel, [&](int, int half, int columns, int channel, int64_t, bool) {
        float v[kVector];
        hopper::take(v, own, 0, half, columns);
        Config::Steps::before(v, x.p.p, x.scalars, channel);
        hopper::put(v, own, 0, half, columns);
      });
      gate.scale(own, 0, [&] { hopper::meet_in<kWide>(kGate + group); });
    }
    each_unit(x, me, first_channel, [&](int i, int half, int columns, int channel, int64_t offset, bool there) {
      float v[kVector], more[kVector];
      hopper::take(v, own, 0, half, columns);
      if constexpr (kProjects) {
        hopper::take(more, projected, 0, half, columns);
#pragma unroll
        for (int e = 0; e < kVector; ++e) v[e] += more[e];
      }
      if (!Config::kStores || there) Config::Steps::apply(v, x.p.p, x.scalars, channel, offset, fetched[i]);
      if (there) store(v, (Element*)x.p.p[kY] + offset);
    });
  }

  // Calls work(place, half, columns, channel, offset, there) for this thread's units of eight channels. What is not there, in
  // the output, may be computed, with some channel that is: branches would make each unit wait for its own vectors.
  template <typename Work>
  AT_DEVICE static void each_unit(const Params& x, const Member& me, int first_channel, const Work& work) {
    const int lane = threadIdx.x % 32, row = me.first_image(x) * x.pixels + threadIdx.x % kWide / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int pixel = row + 8 * (i % 2), own = first_channel + 32 * (i / 2) + 8 * (lane % 4), channel = min(own, x.k - kVector);
      work(i, i % 2, i / 2, channel, (int64_t)pixel * x.k + channel, pixel < x.rows && own < x.k);
    }
  }
};

}  // namespace at
