// A residual block in one kernel: two 3x3 convolutions with squeeze-and-excitation, NHWC, as many channels out as in.
//
// A tile is whole images, and a block (of threads) takes one tile after the other. Both filters stay in its shared memory
// for all of them, loaded once, tap by tap, so that the first products begin with the first tap; a cluster shares
// these loads by multicast. An image lies in shared memory with its halo of zeros, as a patch does in conv2d.cuh: a tap is
// a shift of the address that wgmma reads from, and pixels form squares of 8 x 8. When the first convolution has read the
// image, what follows from its sums is written over the pixels, in TMA's swizzle, and the halo is still zero: the second
// convolution reads it from there. Between x and y nothing leaves the multiprocessor.
#pragma once
#include "sm90/gate.cuh"
#include "sm90/hopper.cuh"

namespace at {

template <typename Config>
struct HopperSeBlock {
  using Element = typename Config::Element;
  static constexpr int kM = Config::kM, kChannels = Config::kChannels;
  static constexpr int kGroups = Config::kGroups, kCluster = Config::kCluster;
  static constexpr int kBlocks = kM / kGroups / 64;  // wgmma's blocks of rows for each warpgroup: squares of 8 x 8 pixels
  static constexpr int kColumns = kChannels / 32, kUnits = kBlocks * 2 * kColumns;  // of eight channels, for each thread
  static constexpr int kThreads = 128 * kGroups + 32;
  static constexpr int kRowBytes = kChannels * (int)sizeof(Element);
  static constexpr int kTaps = 9, kTapBytes = kChannels * kRowBytes;
  static constexpr int kVector = 8;
  using Excitation = Gate<Element, kM, kChannels, 1, 128 * kGroups>;
  // Places of the pointers: Problem.operands() of se_block.
  enum { kX = 0, kWeight = 1, kFirstGate = 3, kY = 7 };
  enum Launch { kGrid, kEarlyTaps };
  static_assert(kM % (64 * kGroups) == 0 && (kChannels == 32 || kChannels == 64), "no such tile");

  struct alignas(64) Params {
    uint8_t image_map[128], weight_maps[2][128];
    int tiles, rows, images, pixels, width;  // rows: pixels of all images
    int squares, squares_w, patch_area, patch_w;  // of an image
    int image_bytes, patch_bytes;  // of a tile: what TMA brings, and what is set aside for it
    int gate_bytes, hidden, early_taps;
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  AT_DEVICE static void prepare(const at_se_block& a, at_prepared* out) {
    Params x{};
    const Excitation gate(a.h * a.w, a.hidden);
    if (a.c != kChannels || a.h % 8 || a.w % 8 || !gate.fits()) return refused(out);
    x.pixels = a.h * a.w, x.width = a.w, x.rows = a.n * x.pixels, x.images = kM / x.pixels;
    x.tiles = ceil_div(a.n, x.images);
    const int patch_h = a.h + 2;
    x.patch_w = a.w + 2, x.patch_area = patch_h * x.patch_w;
    x.squares = x.pixels / 64, x.squares_w = a.w / 8;
    x.image_bytes = x.images * x.patch_area * kRowBytes, x.patch_bytes = ceil_div(x.image_bytes, 1024) * 1024;
    x.hidden = a.hidden, x.gate_bytes = ceil_div(gate.bytes(), 128) * 128;
    x.early_taps = min(a.launch[kEarlyTaps], 2 * kTaps);
    for (int i = 0; i < AT_MAX_SCALARS; ++i) x.scalars[i] = a.scalars[i];

    const int shared = 1024 + x.patch_bytes + 2 * kTaps * kTapBytes + x.gate_bytes + 8 * kBarriers;
    if (shared > 232448) return refused(out);
    const int blocks = a.launch[kGrid] ? min(x.tiles, a.launch[kGrid]) : x.tiles;
    prepared(out, x, ceil_div(blocks, kCluster) * kCluster, 1, 1, kThreads, shared, 0);

    const uint64_t c = kChannels, h = a.h, w = a.w, n = a.n;
    out->tensor_map_count = 3;
    out->tensor_maps[0] = {kImageMap, kX, Config::kMapElement, kSwizzle};
    hopper::describe<Element>(out->tensor_maps[0], {c, w, h, n},
                              {kChannels, (uint32_t)x.patch_w, (uint32_t)patch_h, (uint32_t)x.images}, {1, 1, 1, 1});
    for (int i = 0; i < 2; ++i) {
      out->tensor_maps[1 + i] = {kWeightMaps + 128 * i, kWeight + i, Config::kMapElement, kSwizzle};
      hopper::describe<Element>(out->tensor_maps[1 + i], {c, kTaps, c}, {kChannels, 1, kChannels / kCluster}, {1, 1, 1});
    }
  }

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& x, char* memory) {
    const Layout at(x, hopper::shared_address(memory));
    if (threadIdx.x < 32) {
      const int i = threadIdx.x;
      if (i < 2 * kTaps) hopper::init_barrier(at.weights_full + 8 * i, 1);
      if (i == 0) hopper::init_barrier(at.full, 1);
      if (i == 0) hopper::init_barrier(at.empty, kGroups);
      hopper::publish_barriers();
    }
    if constexpr (kCluster > 1) hopper::sync_cluster();
    else __syncthreads();

    const int warp = hopper::uniform(threadIdx.x / 32);
    if (warp < 4 * kGroups) {
      solve_all(x, at);
    } else {
      if (hopper::elect()) load_all(x, at);
      __syncwarp();
    }
  }

 private:
  static constexpr int kSwizzle = hopper::swizzle_of(kRowBytes);
  static constexpr int kImageMap = 0, kWeightMaps = 128;  // in Params
  static constexpr int kBarriers = 2 + 2 * kTaps;

  // Addresses in shared memory.
  struct Layout {
    uint32_t patch, weights, gate, full, empty, weights_full;
    AT_DEVICE Layout(const Params& x, uint32_t memory) {
      patch = (memory + 1023) / 1024 * 1024;
      weights = patch + x.patch_bytes;
      gate = weights + 2 * kTaps * kTapBytes;
      full = gate + x.gate_bytes;
      empty = full + 8;
      weights_full = empty + 8;
    }
  };

  // ---- Loads ----

  // The filters are constants: their first taps are loaded while the kernel before may still run, but the others
  // come behind the image, because the first products wait for that.
  AT_DEVICE static void load_all(const Params& x, const Layout& at) {
    hopper::prefetch_map(x.image_map);
    load_taps(x, at, 0, x.early_taps);
    wait_for_previous();
    int tile = blockIdx.x;
    if (tile < x.tiles) load_images(x, at, tile);
    load_taps(x, at, x.early_taps, 2 * kTaps);
    for (uint32_t parity = 0; (tile += (int)gridDim.x) < x.tiles; parity ^= 1) {
      hopper::wait(at.empty, parity);
      load_images(x, at, tile);
    }
    if constexpr (kCluster > 1)  // a block must not end while another still loads into it
      for (int i = 0; i < 2 * kTaps; ++i) hopper::wait(at.weights_full + 8 * i, 0);
  }

  AT_DEVICE static void load_images(const Params& x, const Layout& at, int tile) {
    hopper::expect_bytes(at.full, x.image_bytes);
    hopper::load_4d(at.patch, x.image_map, at.full, 0, -1, -1, tile * x.images);
  }

  // Of both filters, one behind the other.
  AT_DEVICE static void load_taps(const Params& x, const Layout& at, int begin, int end) {
    constexpr int kRows = kChannels / kCluster;
    const int first = kCluster > 1 ? (int)hopper::rank_in_cluster() * kRows : 0;
    for (int i = begin; i < end; ++i) {
      const uint32_t full = at.weights_full + 8 * i;
      hopper::expect_bytes(full, kTapBytes);
      hopper::load_3d<(kCluster > 1)>(at.weights + i * kTapBytes + first * kRowBytes, x.weight_maps[i / kTaps], full, 0,
                                      i % kTaps, first, (1 << kCluster) - 1);
    }
  }

  // ---- Products, and what follows them ----

  using Sums = float[kBlocks][kChannels / 2];

  // This thread's part of a tile: of each of its warpgroup's squares the rows 2 warp and 2 warp + 1, column lane / 4; there
  // the channels 8 (lane % 4) on of every 32.
  struct Part {
    int image[kBlocks];        // of the tile
    uint32_t corner[kBlocks];  // in the patch, of the square's first tap: in units of 16 bytes
    int place[kBlocks];        // in the patch, of the pixel in the upper row
    int pixel[kBlocks];        // the same among the tile's pixels
    int slab, channel;
    AT_DEVICE explicit Part(const Params& x) {
      const int lane = threadIdx.x % 32, warp = hopper::uniform(threadIdx.x / 32), first = warp / 4 * kBlocks;
      slab = 4 * first + warp % 4, channel = 8 * (lane % 4);
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        image[m] = (first + m) / x.squares;
        const int square = (first + m) % x.squares, h = 8 * (square / x.squares_w), w = 8 * (square % x.squares_w);
        const int begin = image[m] * x.patch_area + h * x.patch_w + w;
        corner[m] = hopper::uniform(begin * kRowBytes / 16);
        place[m] = begin + (2 * (warp % 4) + 1) * x.patch_w + lane / 4 + 1;
        pixel[m] = image[m] * x.pixels + (h + 2 * (warp % 4)) * x.width + w + lane / 4;
      }
    }
  };

  // Calls work(number, block, half, channel) for this thread's units of eight channels.
  template <typename Work>
  AT_DEVICE static void each_unit(const Part& part, const Work& work) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int columns = i % kColumns, half = i / kColumns % 2, m = i / kColumns / 2;
      work(i, m, half, part.channel + 32 * columns);
    }
  }

  AT_DEVICE static void solve_all(const Params& x, const Layout& at) {
    if ((int)blockIdx.x >= x.tiles) return;
    const Part part(x);
    __builtin_assume(x.pixels >= 64);
    const Excitation gate(x.pixels, x.hidden);
    char* memory = (char*)__cvta_shared_to_generic(at.gate);
    if (threadIdx.x % 32 < 4 * kColumns && threadIdx.x % 4 == 0) Config::Steps::touch(x.p.p, threadIdx.x % 32 * 8);
    gate.load_weights(memory, x.p.p + kFirstGate, 0, kChannels);
    wait_for_previous();
    uint32_t parity = 0;
    for (int tile = blockIdx.x; tile < x.tiles; tile += gridDim.x, parity ^= 1) {
      Sums sums;
      hopper::wait(at.full, parity);
      convolve(x, at, part, 0, sums);
      Excitation::sync();  // nothing reads the image any more
      write_inner(x, at, part, sums);
      hopper::publish_shared();
      Excitation::sync();
      typename Config::Steps::Fetched fetched[kUnits];
      each_there(x, part, tile, [&](int i, int, int, int, int64_t offset) {
        Config::Steps::fetch(fetched[i], x.p.p, offset);
      });
      convolve(x, at, part, 1, sums);
      if (threadIdx.x % 128 == 0) hopper::arrive(at.empty);
      if (tile + (int)gridDim.x >= x.tiles) launch_next();
      excite(x, gate, memory, part, sums);
      const float* gates = (const float*)(memory + gate.mean());
      each_there(x, part, tile, [&](int i, int m, int half, int channel, int64_t offset) {
        float v[kVector], factor[kVector];
        hopper::take(v, sums, m, half, i % kColumns);
        load(factor, gates + part.image[m] * kChannels + channel);
#pragma unroll
        for (int e = 0; e < kVector; ++e) v[e] *= factor[e];
        Config::Steps::apply(v, x.p.p, x.scalars, channel, offset, fetched[i]);
        store(v, (Element*)x.p.p[kY] + offset);
      });
    }
  }

  // each_unit for the pixels that there are, with the place of the unit in a tensor: the last tile may lack images.
  template <typename Work>
  AT_DEVICE static void each_there(const Params& x, const Part& part, int tile, const Work& work) {
    each_unit(part, [&](int i, int m, int half, int channel) {
      const int pixel = tile * kM + part.pixel[m] + half * x.width;
      if (pixel < x.rows) work(i, m, half, channel, (int64_t)pixel * kChannels + channel);
    });
  }

  // The sums of convolution `which` of what lies in the patch.
  AT_DEVICE static void convolve(const Params& x, const Layout& at, const Part& part, int which, Sums& sums) {
    const uint32_t a_high = hopper::high<kRowBytes>(x.patch_w * kRowBytes), b_high = hopper::high<kRowBytes>(8 * kRowBytes);
    uint32_t line = hopper::low(at.patch), b = hopper::low(at.weights + which * kTaps * kTapBytes);
    uint32_t full = at.weights_full + 8 * which * kTaps;
    int accumulate = 0;
    hopper::pin(sums);
    for (int r = 0; r < 3; ++r, line += x.patch_w * (kRowBytes / 16)) {
      uint32_t tap = line;
      for (int s = 0; s < 3; ++s, tap += kRowBytes / 16, b += kTapBytes / 16, full += 8) {
        hopper::wait(full, 0);  // which is over at once after the first tile
        hopper::begin_products();
#pragma unroll
        for (int k = 0; k < kChannels / 16; ++k) {
#pragma unroll
          for (int m = 0; m < kBlocks; ++m)
            Config::multiply(sums[m], hopper::descriptor(tap + part.corner[m] + 2 * k, a_high),
                             hopper::descriptor(b + 2 * k, b_high), accumulate);
          accumulate = 1;
        }
        hopper::commit_products();
      }
    }
    hopper::wait_for_products<0>();
    hopper::pin(sums);
  }

  // What the second convolution reads, in the place of what the first has read. The swizzle goes by the bits of the address.
  AT_DEVICE static void write_inner(const Params& x, const Layout& at, const Part& part, Sums& sums) {
    each_unit(part, [&](int i, int m, int half, int channel) {
      float v[kVector];
      hopper::take(v, sums, m, half, i % kColumns);
      Config::Steps::inner(v, x.p.p, x.scalars, channel);
      const int place = part.place[m] + half * x.patch_w;
      const int chunk = channel / kVector ^ (kRowBytes == 128 ? place % 8 : place / 2 % 4);
      hopper::write(at.patch + place * kRowBytes + 16 * chunk, rounded<Element>(v).words[0]);
    });
  }

  // Applies the steps before the gate to the sums, adds up each image's pixels, and finds the gates.
  AT_DEVICE static void excite(const Params& x, const Excitation& gate, char* memory, const Part& part, Sums& sums) {
#pragma unroll
    for (int columns = 0; columns < kColumns; ++columns) {
      const int channel = part.channel + 32 * columns;
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        float v[2][kVector];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          hopper::take(v[half], sums, m, half, columns);
          Config::Steps::before(v[half], x.p.p, x.scalars, channel);
          hopper::put(v[half], sums, m, half, columns);
        }
        gate.collect(v, memory, part.slab + 4 * m, channel);
      }
    }
    gate.excite(memory, 0, kChannels, 0, 0, [](int) { return 0; });
  }
};

}  // namespace at
