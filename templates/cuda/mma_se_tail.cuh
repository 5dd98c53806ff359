// Squeeze-and-excitation and the rest of a residual block, with both fully connected layers on tensor cores. It suits
// many channels and few pixels, where loading the weights once per image would take longer than loading the image.
//
// A warp owns 32 channels from the mean to the output. It loads its part of both weight matrices into registers before
// griddepcontrol_wait(). Rows 0 to 7 of its products are images, or parts of the pixels of an image: a block takes
// `images` images. Rows 8 to 15 hold the remainders of rounding rows 0 to 7 to the element type, so the result is as
// exact as with float32 means. The channels are permuted along K, so that a thread holds the same eight neighbouring
// channels in the operand of the first product, in the result of the second product, and in x, which stays in
// registers. The warps exchange only the hidden values. The order of all additions is fixed.
#pragma once
#include "common/mma.cuh"

namespace at {

template <typename Config>
struct MmaSeTail {
  using Element = typename Config::Element;
  static constexpr int kThreads = Config::kThreads, kKeep = Config::kKeep, kVector = 8, kRows = 8, kWarpChannels = 32;
  static constexpr int kHidden = Config::kHidden;  // capacity for hidden values, a multiple of 16
  static constexpr int kTiles = kHidden / 8, kSteps = kHidden / 16, kPitch = kHidden + 1;
  // Indices of the pointers: Problem.operands() of se_tail.
  enum { kX = 0, kW1 = 1, kB1 = 2, kW2 = 3, kB2 = 4, kY = 5 };
  using Launch = typename Config::Launch;

  struct Params {
    at_se_tail a;
    int images, lanes;        // images of a block; rows of the products per image
    int channel_warps, step;  // warps that cover all channels; distance between a thread's pixels
    int warps, adders;        // warps of a block; threads that add up one hidden value
    float weight;             // of one pixel in the mean
    at_pointers p;
  };

  AT_DEVICE static void prepare(const at_se_tail& a, at_prepared* out) {
    const int images = a.launch[Launch::kImages], channel_warps = a.c / kWarpChannels;
    const bool known = images == 1 || images == 2 || images == 4 || images == 8;
    if (!known) return refused(out, "the launch value images must be 1, 2, 4 or 8");
    if (a.c % kWarpChannels) return refused(out, "c must be a multiple of the 32 channels of a warp");
    if (channel_warps * 32 > kThreads) return refused(out, "c exceeds the channels of one block: its threads");
    if (a.hidden % 4 || a.hidden > kHidden)
      return refused(out, "hidden must be a multiple of 4 and at most what the kernel is compiled for");
    Params params;
    params.a = a, params.images = images, params.lanes = kRows / images, params.channel_warps = channel_warps;
    const int groups = kThreads / 32 / channel_warps;
    params.step = groups * params.lanes, params.warps = groups * channel_warps;
    if (ceil_div(a.h * a.w, params.step) > kKeep) return refused(out, "h * w exceeds the pixels kept in registers");
    params.adders = 1;
    while (params.adders < 32 && 2 * params.adders * images * kHidden <= 32 * params.warps) params.adders *= 2;
    params.weight = 1.f / (a.h * a.w);
    const int bytes = (params.warps * kRows * kPitch + images * kHidden) * 4;
    prepared(out, params, ceil_div(a.n, images), 1, 1, 32 * params.warps, bytes, 0);
  }

  // A warp's weights: 32 channels x all hidden values of the first layer, all hidden values x 32 channels of the
  // second.
  struct Weights {
    uint4 first[kTiles];
    uint2 second[kSteps][4];
    float bias[kVector];
    AT_DEVICE void read(const at_se_tail& a, void* const* p, int warp_channel) {
      const int lane = threadIdx.x % 32, row = lane / 4, part = lane % 4;
      AT_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
        const int hidden = 8 * tile + row;
        const Element* from = (const Element*)p[kW1] + (int64_t)hidden * a.c + warp_channel + part * kVector;
        first[tile] = hidden < a.hidden ? *(const uint4*)from : uint4{0, 0, 0, 0};
      }
      AT_UNROLL for (int step = 0; step < kSteps; ++step) AT_UNROLL
        for (int tile = 0; tile < 4; ++tile) {
          const int hidden = 16 * step + 4 * part, channel = warp_channel + row / 2 * kVector + 2 * tile + row % 2;
          const Element* from = (const Element*)p[kW2] + (int64_t)channel * a.hidden + hidden;
          second[step][tile] = hidden < a.hidden ? *(const uint2*)from : uint2{0, 0};
        }
      load(bias, (const float*)p[kB2] + warp_channel + part * kVector);
    }
  };

  AT_DEVICE static void run(const Params& params, char* shared) {
    const at_se_tail& a = params.a;
    void* const* p = params.p.p;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, part = lane % 4;
    const int group = warp / params.channel_warps, warp_channel = (warp - group * params.channel_warps) * kWarpChannels;
    const int pixels = a.h * a.w, channel = warp_channel + part * kVector;
    float* partial = (float*)shared;  // (warp, row, hidden)
    float4* hiddens =
        (float4*)(partial + params.warps * kRows * kPitch);  // (image, hidden); 8 rows keep 16-byte alignment

    Weights weights;
    weights.read(a, p, warp_channel);
    const int pair = threadIdx.x / params.adders, o = pair % kHidden;
    float first_bias = o < a.hidden ? ((const float*)p[kB1])[o] : 0.f;
    griddepcontrol_wait();

    const int own = row / params.lanes, image = blockIdx.x * params.images + own;
    const int64_t first = (int64_t)min(image, a.n - 1) * pixels * a.c + channel;
    const int lane_pixel = group * params.lanes + row - own * params.lanes;
    Pack<Element, kVector> kept[kKeep];
    typename Config::Steps::Fetched fetched[kKeep];
    AT_UNROLL for (int i = 0; i < kKeep; ++i) {
      const int pixel = lane_pixel + i * params.step;
      kept[i].words[0] = uint4{0, 0, 0, 0};
      if (pixel < pixels) kept[i].read((const Element*)p[kX] + first + (int64_t)pixel * a.c);
    }
    AT_UNROLL for (int i = 0; i < kKeep; ++i) {
      const int pixel = lane_pixel + i * params.step;
      if (pixel < pixels) Config::Steps::fetch(fetched[i], p, first + (int64_t)pixel * a.c);
    }
    launch_dependents();

    // The product of this row's part of the mean and the first weights.
    float sum[kVector] = {};
    AT_UNROLL for (int i = 0; i < kKeep; ++i) AT_UNROLL
      for (int e = 0; e < kVector; ++e) sum[e] += to_float(kept[i].elements[e]);
    uint32_t mean[4][2];
    AT_UNROLL for (int i = 0; i < 4; ++i)
      split<Element>(sum[2 * i] * params.weight, sum[2 * i + 1] * params.weight, mean[i][0], mean[i][1]);
    AT_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      float d[4] = {};
      mma<Element>(d, {mean[0][0], mean[0][1], mean[1][0], mean[1][1]}, weights.first[tile].x, weights.first[tile].y);
      mma<Element>(d, {mean[2][0], mean[2][1], mean[3][0], mean[3][1]}, weights.first[tile].z, weights.first[tile].w);
      float* to = partial + (warp * kRows + row) * kPitch + 8 * tile + 2 * part;
      to[0] = d[0] + d[2], to[1] = d[1] + d[3];
    }
    __syncthreads();

    // hidden = relu(sum + b1); `adders` threads add up one value.
    const int adder = threadIdx.x % params.adders, count = params.warps * params.lanes;
    AT_NO_UNROLL for (int i = pair; i < params.images * kHidden; i += 32 * params.warps / params.adders) {
      const int of = i / kHidden, hidden = i % kHidden;
      float total = 0.f;
#pragma unroll 4
      for (int j = adder; j < count; j += params.adders) {
        const int from_warp = j / params.lanes, from_row = of * params.lanes + j - from_warp * params.lanes;
        total += partial[(from_warp * kRows + from_row) * kPitch + hidden];
      }
      for (int distance = params.adders / 2; distance; distance /= 2)
        total += __shfl_xor_sync(0xffffffffu, total, distance);
      if (i != pair) first_bias = hidden < a.hidden ? ((const float*)p[kB1])[hidden] : 0.f;
      if (adder == 0) ((float*)hiddens)[i] = at_least_zero(total + first_bias);
    }
    __syncthreads();

    // gate = sigmoid(w2 hidden + b2) for this thread's image and channels.
    float gate[4][4] = {};
    AT_UNROLL for (int step = 0; step < kSteps; ++step) {
      const float4 h = hiddens[own * (kHidden / 4) + 4 * step + part];
      uint32_t low[2], high[2];
      split<Element>(h.x, h.y, low[0], low[1]);
      split<Element>(h.z, h.w, high[0], high[1]);
      AT_UNROLL for (int tile = 0; tile < 4; ++tile)
        mma<Element>(gate[tile], {low[0], low[1], high[0], high[1]}, weights.second[step][tile].x,
                     weights.second[step][tile].y);
    }
    float factor[kVector];
    AT_UNROLL for (int e = 0; e < kVector; ++e)
      factor[e] = logistic(gate[e / 2][e % 2] + gate[e / 2][2 + e % 2] + weights.bias[e]);

    AT_UNROLL for (int i = 0; i < kKeep; ++i) {
      const int pixel = lane_pixel + i * params.step;
      if (pixel >= pixels || image >= a.n) continue;
      float v[kVector];
      AT_UNROLL for (int e = 0; e < kVector; ++e)
        v[e] = to_float(kept[i].elements[e]) * factor[e];
      const int64_t offset = first + (int64_t)pixel * a.c;
      Config::Steps::apply(v, p, a.scalars, channel, offset, fetched[i]);
      store(v, (Element*)p[kY] + offset);
    }
  }
};

}  // namespace at
