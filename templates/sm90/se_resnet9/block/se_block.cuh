// A residual block in one kernel: two 3 x 3 convolutions and squeeze-and-excitation, NHWC, as many channels out as in.
//
// A tile is whole images, and a thread block processes one tile after the other. Both filters stay in shared memory for
// all tiles. They are loaded once, tap by tap, so that the first products start with the first tap; a cluster shares
// these loads by multicast. An image lies in shared memory with a halo of zeros, like a patch of conv2d/conv2d.cuh: a
// tap shifts the start address of wgmma's descriptor, and pixels form squares of 8 x 8. After the first convolution its
// result overwrites the pixels, in TMA's swizzle, and the halo remains zero, so the second convolution reads it in
// place. Between x and y nothing leaves the SM.
//
// TMA loads the image, or a stem computes it (stem/patch_stem.cuh). With a stem the halo is written once at the
// beginning, and no warp only loads: only constants remain to be loaded, and without that warp each thread may have
// more registers.
#pragma once
#include "sm90/fragment.cuh"
#include "sm90/smem_layout.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/wgmma.cuh"
#include "common/se_gate.cuh"
#include "sm90/se_resnet9/block/warp_coord.cuh"
#include "sm90/se_resnet9/stem/patch_stem.cuh"

namespace at {

template <typename Config>
struct HopperSeBlock {
  using Element = typename Config::Element;
  static constexpr int kM = Config::kM, kChannels = Config::kChannels;
  static constexpr int kPixels = Config::kPixels, kSquares = kPixels / 64,
                       kImages = kM / kPixels;  // squares of an image; images of a tile
  static constexpr int kGroups = Config::kGroups, kCluster = Config::kCluster;
  static constexpr int kImage = Config::kImage;  // channels of the stem's image, or 0 without a stem
  static constexpr bool kStem = kImage > 0;
  static constexpr int kBlocks = kM / kGroups / 64;  // blocks of 64 rows of a warpgroup: squares of 8 x 8 pixels
  static constexpr int kWarps = 4 * kGroups, kThreads = 32 * (kWarps + !kStem);
  static constexpr int kRowBytes = kChannels * (int)sizeof(Element);
  static constexpr int kTaps = 9, kTapBytes = kChannels * kRowBytes, kVector = 8;
  static constexpr bool kWhole = kSquares >= kBlocks;  // all rows of a warp belong to one image
  using WarpCoord = SeBlockWarpCoord<kBlocks, kChannels, kRowBytes, kSquares>;
  static constexpr int kColumns = WarpCoord::kColumns, kUnits = WarpCoord::kUnits;
  using Excitation = SeGate<Element, kM, kChannels, 1, 128 * kGroups>;
  using Stem = BlockStem<Element, kImage, kChannels, kBlocks>;
  // Indices of the pointers: Problem.operands() of se_block or, with the stem's weights before the filters, of
  // stem_se_block.
  enum { kX = 0, kStemWeight = 1, kWeight = kStem ? 2 : 1, kFirstGate = kWeight + 2, kY = kFirstGate + 4 };
  using Launch = typename Config::Launch;  // launch values by name, in the family's order
  static_assert(kM % (64 * kGroups) == 0 && (kChannels == 32 || kChannels == 64), "no such tile");
  static_assert(kPixels % 64 == 0 && kM % kPixels == 0, "a tile is whole images");

  struct alignas(64) Params {
    uint8_t first_map[128], weight_maps[2][128];  // first: the image or, with a stem, the stem's weights
    int tiles, rows, width;                       // rows: pixels of all images
    int squares_w, patch_area, patch_w;           // of an image
    int image_bytes, patch_bytes;                 // of a tile: loaded, and reserved
    int gate_bytes, hidden, early_taps;
    StemImage stem;
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  AT_DEVICE static void prepare(const at_stem_se_block& a, at_prepared* out) {
    constexpr int kSide = Stem::kSide;
    if (a.c != kImage || a.block != kSide || a.h % kSide || a.w % kSide)
      return refused(out, "the stem is compiled for 4 x 4 patches and another number of channels");
    at_se_block behind{a.n, a.h / kSide, a.w / kSide, a.k, a.hidden};
    for (int i = 0; i < AT_MAX_SCALARS; ++i) behind.scalars[i] = a.scalars[i];
    for (int i = 0; i < AT_MAX_LAUNCH; ++i) behind.launch[i] = a.launch[i];
    prepare(behind, out, stem_image(a.n, a.h, a.w, a.c, a.launch[Launch::kChannelsLast]));
  }

  AT_DEVICE static void prepare(const at_se_block& a, at_prepared* out, const StemImage& stem = {}) {
    Params x{};
    x.stem = stem;
    const Excitation gate = excitation(a.hidden);
    if (a.c != kChannels || a.h * a.w != kPixels)
      return refused(out, "the kernel is compiled for another number of channels or pixels");
    if (a.h % 8 || a.w % 8) return refused(out, "h and w must be multiples of 8");
    if (!gate.fits()) return refused(out, "the gate's hidden values must be a multiple of 4");
    x.width = a.w, x.rows = a.n * kPixels, x.tiles = ceil_div(a.n, kImages);
    const int patch_h = a.h + 2;
    x.patch_w = a.w + 2, x.patch_area = patch_h * x.patch_w;
    x.squares_w = a.w / 8;
    x.image_bytes = kImages * x.patch_area * kRowBytes, x.patch_bytes = ceil_div(x.image_bytes, 1024) * 1024;
    x.hidden = a.hidden, x.gate_bytes = ceil_div(gate.bytes(), 128) * 128;
    x.early_taps = min(a.launch[Launch::kEarlyTaps], 2 * kTaps);
    for (int i = 0; i < AT_MAX_SCALARS; ++i) x.scalars[i] = a.scalars[i];

    const int shared =
        kSmemAlignment + x.patch_bytes + 2 * kTaps * kTapBytes + kStemBytes + x.gate_bytes + 8 * kBarriers;
    if (shared > AT_MAX_SHARED_BYTES) return refused(out, "the block needs more shared memory than the GPU has");
    const int blocks = a.launch[Launch::kGrid] ? min(x.tiles, a.launch[Launch::kGrid]) : x.tiles;
    prepared(out, x, ceil_div(blocks, kCluster) * kCluster, 1, 1, kThreads, shared, 0);

    const uint64_t c = kChannels, h = a.h, w = a.w, n = a.n;
    out->tensor_map_count = 3;
    if constexpr (kStem) {
      out->tensor_maps[0] = {kFirstMap, kStemWeight, Config::kMapElement, ptx::swizzle_mode(32)};
      ptx::describe_tensor_map<Element>(out->tensor_maps[0], {16, c, kImage}, {16, kChannels, kImage}, {1, 1, 1});
    } else {
      out->tensor_maps[0] = {kFirstMap, kX, Config::kMapElement, kSwizzle};
      ptx::describe_tensor_map<Element>(out->tensor_maps[0], {c, w, h, n},
                                        {kChannels, (uint32_t)x.patch_w, (uint32_t)patch_h, kImages}, {1, 1, 1, 1});
    }
    for (int i = 0; i < 2; ++i) {
      out->tensor_maps[1 + i] = {kWeightMaps + 128 * i, kWeight + i, Config::kMapElement, kSwizzle};
      ptx::describe_tensor_map<Element>(out->tensor_maps[1 + i], {c, kTaps, c}, {kChannels, 1, kChannels / kCluster},
                                        {1, 1, 1});
    }
  }

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& x, char* memory) {
    const Layout smem(x, ptx::cast_smem_ptr_to_uint(memory));
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    if (warp == 0) {
      ptx::mbarrier_init_array(smem.weights_full, 2 * kTaps, 1);
    } else if (warp == 1) {
      ptx::mbarrier_init_array(smem.full, 1, 1);
      ptx::mbarrier_init_array(smem.empty, 1, kGroups);
    }
    ptx::fence_barrier_init();
    ptx::cluster_or_block_sync<kCluster>();

    if (kStem || warp < kWarps) {
      solve_all(x, smem);
    } else {
      if (ptx::elect_one_sync()) load_all(x, smem);
      __syncwarp();
    }
  }

 private:
  static constexpr int kSwizzle = ptx::swizzle_mode(kRowBytes);
  static constexpr int kFirstMap = 0, kWeightMaps = 128;  // offsets in Params
  static constexpr int kStemBytes = kImage * Stem::kStepBytes;
  static constexpr int kBarriers = 2 + 2 * kTaps;

  // Addresses in shared memory. `full` counts the bytes of the image or, with a stem, of the stem's weights.
  struct Layout {
    uint32_t patch, weights, stem, gate, full, empty, weights_full;
    AT_DEVICE Layout(const Params& x, uint32_t memory) {
      SmemLayout layout(align_smem(memory));
      patch = layout.add(x.patch_bytes);
      weights = layout.add(2 * kTaps * kTapBytes);
      stem = layout.add(kStemBytes);
      gate = layout.add(x.gate_bytes);
      full = layout.add_barriers(1);
      empty = layout.add_barriers(1);
      weights_full = layout.add_barriers(2 * kTaps);
    }
  };

  // If all rows of a warp belong to one image, it adds up its blocks before it stores partial sums.
  AT_DEVICE static Excitation excitation(int hidden) { return Excitation(kPixels, hidden, kWhole ? 16 * kBlocks : 16); }

  // ---- Loads ----

  // The filters are constants, so `early_taps` of them are loaded before griddepcontrol_wait(). The others follow the
  // image, since the first products wait for that.
  AT_DEVICE static void load_all(const Params& x, const Layout& smem) {
    ptx::prefetch_tensormap(x.first_map);
    for (int i = 0; i < x.early_taps; ++i) load_tap(x, smem, i);
    griddepcontrol_wait();
    int tile = blockIdx.x;
    if (tile < x.tiles) load_images(x, smem, tile);
    for (int i = x.early_taps; i < 2 * kTaps; ++i) load_tap(x, smem, i);
    for (uint32_t parity = 0; (tile += (int)gridDim.x) < x.tiles; parity ^= 1) {
      ptx::mbarrier_wait(smem.empty, parity);
      load_images(x, smem, tile);
    }
    wait_for_taps(smem);
  }

  // A block must not exit while others of the cluster still load into it.
  AT_DEVICE static void wait_for_taps(const Layout& smem) {
    if constexpr (kCluster > 1)
      for (int i = 0; i < 2 * kTaps; ++i) ptx::mbarrier_wait(smem.weights_full + 8 * i, 0);
  }

  AT_DEVICE static void load_images(const Params& x, const Layout& smem, int tile) {
    ptx::mbarrier_arrive_expect_tx(smem.full, x.image_bytes);
    ptx::tma_load_4d(smem.patch, x.first_map, smem.full, 0, -1, -1, tile * kImages);
  }

  // Loads tap i of the two filters, which follow each other.
  AT_DEVICE static void load_tap(const Params& x, const Layout& smem, int i) {
    constexpr int kRows = kChannels / kCluster;
    const int first = kCluster > 1 ? (int)ptx::block_rank_in_cluster() * kRows : 0;
    const uint32_t full = smem.weights_full + 8 * i;
    ptx::mbarrier_arrive_expect_tx(full, kTapBytes);
    ptx::tma_load_3d<(kCluster > 1)>(smem.weights + i * kTapBytes + first * kRowBytes, x.weight_maps[i / kTaps], full,
                                     0, i % kTaps, first, (1 << kCluster) - 1);
  }

  AT_DEVICE static void load_stem(const Params& x, const Layout& smem) {
    ptx::mbarrier_arrive_expect_tx(smem.full, kStemBytes);
    ptx::tma_load_3d<false>(smem.stem, x.first_map, smem.full, 0, 0, 0, 0);
  }

  // With a stem: each warp loads its share of the taps from `begin` to `end`.
  AT_DEVICE static void load_share(const Params& x, const Layout& smem, int begin, int end) {
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    if (ptx::elect_one_sync())
      for (int i = warp; i < end; i += kWarps)
        if (i >= begin) load_tap(x, smem, i);
    __syncwarp();
  }

  // ---- Products, and what follows them ----

  using Sums = float[kBlocks][kChannels / 2];

  AT_DEVICE static void solve_all(const Params& x, const Layout& smem) {
    const bool idle = (int)blockIdx.x >= x.tiles;  // it only completes the cluster
    if constexpr (kStem) {
      if (threadIdx.x == 0 && !idle) load_stem(x, smem);
      load_share(x, smem, 0, idle ? 2 * kTaps : x.early_taps);
      if (idle) wait_for_taps(smem);
    }
    if (idle) return;
    const WarpCoord coord(x);
    const Excitation gate = excitation(x.hidden);
    char* memory = (char*)__cvta_shared_to_generic(smem.gate);
    [[maybe_unused]] Stem stem(x.stem, coord);
    if constexpr (kStem) {  // the image is needed first; the rest is loaded meanwhile
      griddepcontrol_wait();
      stem.read(x.stem, x.p.p[kX], blockIdx.x * kImages);
      load_share(x, smem, x.early_taps, 2 * kTaps);  // not sooner, since the first products wait for the image
      clear_patch(x, smem);
    }
    gate.load_weights(memory, x.p.p + kFirstGate, 0, kChannels, threadIdx.x);
    if constexpr (kStem) Excitation::sync();  // all warps have cleared the patch
    else griddepcontrol_wait();
    uint32_t parity = 0;
    for (int tile = blockIdx.x; tile < x.tiles; tile += gridDim.x, parity ^= 1) {
      const bool last = tile + (int)gridDim.x >= x.tiles;
      Sums sums;
      typename Config::Steps::Fetched fetched[kUnits];
      if constexpr (kStem) {
        make_image(x, smem, coord, stem, sums, fetched);
        if (!last) stem.read(x.stem, x.p.p[kX], (tile + (int)gridDim.x) * kImages);
      } else {
        ptx::mbarrier_wait(smem.full, parity);
      }
      convolve(x, smem, coord, 0, sums);
      Excitation::sync();  // all warps have read the image
      write_inner(x, smem, coord, sums);
      each_there(x, coord, tile,
                 [&](int i, int, int, int, int64_t offset) { Config::Steps::fetch(fetched[i], x.p.p, offset); });
      convolve(x, smem, coord, 1, sums);
      if (!kStem && threadIdx.x % 128 == 0) ptx::mbarrier_arrive(smem.empty);
      if (last) launch_dependents();
      excite(x, gate, memory, coord, sums);
      const float* gates = (const float*)(memory + gate.mean());
      each_there(x, coord, tile, [&](int i, int m, int half, int channel, int64_t offset) {
        float v[kVector], factor[kVector];
        load_fragment(v, sums, m, half, i % kColumns);
        load(factor, gates + coord.image[m] * kChannels + channel);
#pragma unroll
        for (int e = 0; e < kVector; ++e) v[e] *= factor[e];
        Config::Steps::apply(v, x.p.p, x.scalars, channel, offset, fetched[i]);
        store(v, (Element*)x.p.p[kY] + offset);
      });
    }
  }

  // Calls work() as coord.each_unit() does, with the vector's offset in a tensor, for pixels that exist: the last tile
  // may have fewer images.
  template <typename Work>
  AT_DEVICE static void each_there(const Params& x, const WarpCoord& coord, int tile, const Work& work) {
    coord.each_unit([&](int i, int m, int half, int channel) {
      const int pixel = tile * kM + coord.pixel[m] + half * x.width;
      if (kImages == 1 || pixel < x.rows) work(i, m, half, channel, (int64_t)pixel * kChannels + channel);
    });
  }

  // Computes convolution `which`, 0 or 1, of the patch.
  AT_DEVICE static void convolve(const Params& x, const Layout& smem, const WarpCoord& coord, int which, Sums& sums) {
    const uint32_t a_hi = ptx::descriptor_hi<kRowBytes>(x.patch_w * kRowBytes),
                   b_hi = ptx::descriptor_hi<kRowBytes>(8 * kRowBytes);
    uint32_t line = ptx::descriptor_lo(smem.patch), b = ptx::descriptor_lo(smem.weights + which * kTaps * kTapBytes);
    uint32_t full = smem.weights_full + 8 * which * kTaps;
    int accumulate = 0;
    ptx::warpgroup_fence_operand(sums);
    for (int r = 0; r < 3; ++r, line += x.patch_w * (kRowBytes / 16)) {
      uint32_t tap = line;
      for (int s = 0; s < 3; ++s, tap += kRowBytes / 16, b += kTapBytes / 16, full += 8) {
        ptx::mbarrier_wait(full, 0);  // returns at once after the first tile
        ptx::warpgroup_arrive();
#pragma unroll
        for (int k = 0; k < kChannels / 16; ++k) {
#pragma unroll
          for (int m = 0; m < kBlocks; ++m)
            Config::wgmma(sums[m], ptx::SmemDescriptor{tap + coord.corner[m] + 2 * k, a_hi},
                          ptx::SmemDescriptor{b + 2 * k, b_hi}, accumulate);
          accumulate = 1;
        }
        ptx::warpgroup_commit_batch();
      }
    }
    ptx::warpgroup_wait<0>();
    ptx::warpgroup_fence_operand(sums);
  }

  AT_DEVICE static void clear_patch(const Params& x, const Layout& smem) {
    for (int i = threadIdx.x; i < x.image_bytes / 16; i += 128 * kGroups)
      ptx::st_shared(smem.patch + 16 * i, make_uint4(0, 0, 0, 0));
  }

  // Writes the first convolution's input from the stem's sums, and keeps what the last steps add.
  AT_DEVICE static void make_image(const Params& x, const Layout& smem, const WarpCoord& coord, const Stem& stem,
                                   Sums& sums, typename Config::Steps::Fetched (&fetched)[kUnits]) {
    ptx::mbarrier_wait(smem.full, 0);
    stem.template multiply<Config>(sums, smem.stem);
    write_patch(x, smem, coord, sums, [&](float (&v)[kVector], int i, int channel) {
      Config::Steps::stem(v, fetched[i], x.p.p, x.scalars, channel);
    });
  }

  // Writes the second convolution's input over the first one's.
  AT_DEVICE static void write_inner(const Params& x, const Layout& smem, const WarpCoord& coord, Sums& sums) {
    write_patch(x, smem, coord, sums,
                [&](float (&v)[kVector], int, int channel) { Config::Steps::inner(v, x.p.p, x.scalars, channel); });
  }

  // Applies steps(v, number, channel) to the sums, writes the result over the image's pixels, and makes it visible to
  // wgmma. The swizzle depends on address bits 7 to 9.
  template <typename Steps>
  AT_DEVICE static void write_patch(const Params& x, const Layout& smem, const WarpCoord& coord, Sums& sums,
                                    const Steps& steps) {
    coord.each_unit([&](int i, int m, int half, int channel) {
      float v[kVector];
      load_fragment(v, sums, m, half, i % kColumns);
      steps(v, i, channel);
      const int place = coord.place[m] + half * x.patch_w;
      const int chunk = channel / kVector ^ (kRowBytes == 128 ? place % 8 : place / 2 % 4);
      ptx::st_shared(smem.patch + place * kRowBytes + 16 * chunk, rounded<Element>(v).words[0]);
    });
    ptx::fence_view_async_shared();
    Excitation::sync();
  }

  // Applies the steps before the gate, adds up each image's pixels, and computes the gates.
  AT_DEVICE static void excite(const Params& x, const Excitation& gate, char* memory, const WarpCoord& coord,
                               Sums& sums) {
#pragma unroll
    for (int columns = 0; columns < kColumns; ++columns) {
      const int channel = coord.channel + 32 * columns;
      float total[2][kVector];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float v[kVector];
          load_fragment(v, sums, m, half, columns);
          Config::Steps::before(v, x.p.p, x.scalars, channel);
          store_fragment(v, sums, m, half, columns);
#pragma unroll
          for (int e = 0; e < kVector; ++e) total[half][e] = kWhole && m ? total[half][e] + v[e] : v[e];
        }
        if (!kWhole) gate.collect(total, memory, coord.slab + 4 * m, channel);
      }
      if (kWhole) gate.collect(total, memory, coord.warp, channel);
    }
    if constexpr (kImages == 1) gate.excite_image(memory);
    else gate.excite(memory, 0, kChannels, 0, 0, [](int) { return 0; });
  }
};

}  // namespace at
