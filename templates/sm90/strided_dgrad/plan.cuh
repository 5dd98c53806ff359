// Host side and shared definitions of the kernel in strided_dgrad/conv2d.cuh: phases, parameters, prepare() and the
// shared-memory layout.
#pragma once
#include "common/fast_divmod.cuh"
#include "sm90/ring.cuh"
#include "sm90/tensor_maps.cuh"

namespace at {

template <typename Config>
struct StridedDgradPlan {
  using Element = typename Config::Element;
  static constexpr int kM = Config::kM, kN = Config::kN, kGroups = Config::kGroups;
  static constexpr int kBlocks = kM / 64 / kGroups;  // blocks of 64 pixels of a warpgroup
  static constexpr int kPeers = Config::kClusterM;   // tiles of a cluster, which share the loads of weights
  static constexpr int kOwnN = kN / kPeers;          // channels of the weights that a block loads
  static constexpr int kK = 64, kRowBytes = kK * (int)sizeof(Element);
  static constexpr int kStageBytes = (kM + kN) * kRowBytes, kWeightOffset = kM * kRowBytes;
  static constexpr int kThreads = 128 * kGroups + 32;
  static constexpr int kMaxStride = 2, kMaxPhases = kMaxStride * kMaxStride;
  enum { kDy = 0, kWeight = 1, kDx = 2 };                          // indices of the pointers: Problem.operands()
  using Launch = typename Config::Launch;                          // launch values by name, in the family's order
  static constexpr int kDyMap = 0, kWeightMap = 128 * kMaxPhases;  // offsets in Params
  static_assert(kM % (64 * kGroups) == 0 && kN % 32 == 0 && kN <= 256 && kRowBytes == 128, "no such tile");
  static_assert(kOwnN % 8 == 0, "peers load whole swizzle atoms");

  // The phases of one axis. Phase i has the pixels i, i + stride, ... of dx.
  struct Axis {
    int pixels[kMaxStride];
    int taps[kMaxStride];       // taps of the filter that these pixels meet
    int first_tap[kMaxStride];  // the one of the lowest pixel of dy
    int low[kMaxStride];        // that pixel of dy, for the phase's first pixel of dx
    int tap_step, dy_step;      // from one of its taps to the next: taps of the filter, pixels of dy
  };

  // The tiles of one phase.
  struct Phase {
    int h, w;         // of the axes
    int rows, tiles;  // pixels of dx; tiles before those of the next phase
    FastDivmod area, width;
  };

  struct alignas(64) Params {
    uint8_t dy_maps[kMaxPhases][128], weight_map[128];
    Axis vertical, horizontal;
    Phase phases[kMaxPhases];  // the longest sums first
    FastDivmod tiles_n;
    int h, w, c, s, stride_h, stride_w, chunks, stages;
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };

  // ---- Before the launch ----

  // Returns the phases of an axis on which dx has `x` pixels and the filter has `taps` taps.
  AT_DEVICE static Axis axis(int x, int taps, int stride, int pad, int dilation) {
    Axis a{};
    a.tap_step = stride == 2 && dilation % 2 ? 2 : 1, a.dy_step = a.tap_step * dilation / stride;
    for (int i = 0; i < stride; ++i) {
      a.pixels[i] = (x - i + stride - 1) / stride;
      // Pixel i meets tap t if (i + pad - t * dilation) is a multiple of the stride: a pixel of dy.
      for (int t = 0; t < taps; ++t) {
        const int reach = i + pad - t * dilation;
        if (reach % stride) continue;
        ++a.taps[i], a.first_tap[i] = t, a.low[i] = reach / stride;
      }
    }
    return a;
  }

  AT_DEVICE static void prepare(const at_conv2d& a, at_prepared* out) {
    Params params{};
    if (a.groups > 1) return refused(out, "groups must be 1");
    if (a.c % 8 || a.k % 8) return refused(out, "c and k must be multiples of 8");
    if (a.stride_h > kMaxStride || a.stride_w > kMaxStride) return refused(out, "stride must be at most 2");
    params.vertical = axis(a.h, a.r, a.stride_h, a.pad_h, a.dilation_h);
    params.horizontal = axis(a.w, a.s, a.stride_w, a.pad_w, a.dilation_w);
    params.h = a.h, params.w = a.w, params.c = a.c, params.s = a.s, params.stride_h = a.stride_h,
    params.stride_w = a.stride_w;
    params.chunks = ceil_div(a.k, kK), params.stages = a.launch[Launch::kSlots];
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.scalars[i] = a.scalars[i];
    const int64_t shared = kSmemAlignment + Layout(params, 0).end;
    if (params.stages < 2 || params.stages > 32 || shared > AT_MAX_SHARED_BYTES)
      return refused(out, "slots must be 2 to 32, and fit the GPU's shared memory");

    // By the number of taps, so that short tiles fill the end.
    int order[kMaxPhases], count = 0;
    for (int i = 0; i < a.stride_h * a.stride_w; ++i) {
      int at = count++;
      for (; at > 0 && taps(params, i) > taps(params, order[at - 1]); --at) order[at] = order[at - 1];
      order[at] = i;
    }
    int tiles_m = 0;
    params.tiles_n = FastDivmod::make(ceil_div(a.c, kN));
    for (int i = 0; i < kMaxPhases; ++i) {
      const int phase = order[min(i, count - 1)], h = phase / a.stride_w, w = phase % a.stride_w;
      const int height = params.vertical.pixels[h], width = params.horizontal.pixels[w], rows = a.n * height * width;
      if (i < count) tiles_m += ceil_div(rows, kM * kPeers) * kPeers;
      params.phases[i] = {
          h, w, rows, tiles_m, FastDivmod::make(max(height * width, 1)), FastDivmod::make(max(width, 1))};
    }
    prepared(out, params, tiles_m * params.tiles_n.divisor, 1, 1, kThreads, (int)shared, 0);

    const uint64_t n = a.n, p = a.p, q = a.q, k = a.k, c = ceil_div(a.c, 32) * 32, filter = a.r * a.s;
    for (int i = 0; i < count; ++i) {
      const Phase& phase = params.phases[i];
      at_tensor_map& map = add_tensor_map<Config>(out, kDyMap + 128 * i, kDy, kRowBytes);
      ptx::describe_tensor_map<Element>(map, {k, q, p, n}, {kK, 1, 1, 1}, {1, 1, 1, 1});
      // A phase without pixels is never loaded, but its map must be valid.
      const int height = max(params.vertical.pixels[phase.h], 1), width = max(params.horizontal.pixels[phase.w], 1);
      map.pixels = max(min(kM, phase.rows), 1);
      map.lower[0] = params.horizontal.low[phase.w], map.upper[0] = map.lower[0] + width - a.q;
      map.lower[1] = params.vertical.low[phase.h], map.upper[1] = map.lower[1] + height - a.p;
    }
    ptx::describe_tensor_map<Element>(add_tensor_map<Config>(out, kWeightMap, kWeight, kRowBytes), {k, filter, c},
                                      {kK, 1, kOwnN}, {1, 1, 1});
  }

  AT_DEVICE static int taps(const Params& params, int phase) {
    return params.vertical.taps[phase / params.stride_w] * params.horizontal.taps[phase % params.stride_w];
  }

  // ---- Of a block ----

  // Addresses in shared memory. A stage holds 64 channels of dy for each pixel of the tile, then of the weights.
  struct Layout {
    uint32_t stages, end;
    Pipeline pipeline;
    AT_DEVICE Layout(const Params& params, uint32_t memory) {
      SmemLayout layout(memory);
      stages = layout.add(params.stages * kStageBytes);
      pipeline = add_pipeline(layout, params.stages);
      end = layout.end;
    }
  };

  struct Tile {
    int index, channel;  // of the phase in Params, and the first channel of dx
    int peer;            // rank in the cluster
    int first, taps_h, taps_w;
    AT_DEVICE explicit Tile(const Params& params) {
      peer = blockIdx.x % kPeers;
      const int m = params.tiles_n.divmod(blockIdx.x / kPeers, channel) * kPeers + peer;
      channel *= kN;
      index = 0;
      AT_UNROLL for (int i = 0; i + 1 < kMaxPhases; ++i)
        index += m >= params.phases[i].tiles;
      const Phase& phase = params.phases[index];
      // The last tile ends with the last pixel, as TMA takes longer for rows beyond it. It computes some pixels again,
      // to the same bits, and so does a tile that only fills its cluster.
      const int begin = index ? params.phases[index - 1].tiles : 0;
      first = min((m - begin) * kM, max(phase.rows - kM, 0));
      taps_h = params.vertical.taps[phase.h], taps_w = params.horizontal.taps[phase.w];
    }
  };

  using Accum = float[kBlocks][kN / 2];
};

}  // namespace at
