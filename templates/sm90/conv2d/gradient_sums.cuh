// A convolution whose output is the gradient with respect to a batch normalization's result: the epilogue adds a second
// gradient, sets to 0 what a ReLU did not pass on, and adds up the sums of the normalization's gradient (problem
// conv2d_gradient_sums).
//
// Loads are pipelined: 32 channels of all pixels of a thread are loaded while the previous 32 are added up.
#pragma once
#include "sm90/conv2d/column_totals.cuh"

namespace at {

struct PlainSums {
  float first = 0.f, second = 0.f;
  AT_DEVICE void add(const Total& other) { first += other.first, second += other.second; }
  AT_DEVICE Total total() const { return {0.f, first, second}; }
};

template <typename Config>
struct GradientSumsStore : ColumnTotals<Config, PlainSums, GradientSumsStore<Config>> {
  using Totals = ColumnTotals<Config, PlainSums, GradientSumsStore<Config>>;
  using P = typename Totals::P;
  using Params = typename P::Params;
  // What a thread reads for 32 channels.
  struct Lines {
    Pack<typename P::Element, 8> x[2 * P::kBlocks], dy2[2 * P::kBlocks], z[2 * P::kBlocks];
  };
  enum { kNormX = 3, kStatistics = 4, kSums = 5, kMore = 6 };  // Conv2dGradientSums.operands()
  enum { kNoRelu, kOwnRelu, kJoinedRelu };

  // The problem's fields are passed as scalars, which it has none of: Params have no other room.
  template <typename Problem>
  AT_DEVICE static void complete(const Problem& a, at_prepared* out) {
    Totals::complete(out);
    if (out->status != AT_OK) return;
    Params& params = *reinterpret_cast<Params*>(out->params);
    params.scalars[0] = a.relu, params.scalars[1] = a.gradients;
  }

  AT_DEVICE static void add_tile(const Params& params, const typename P::Tile& tile, int first_block,
                                 typename P::Accum& accum, typename Totals::Own& own) {
    using Element = typename P::Element;
    const typename Totals::Pixels pixels(params, tile, first_block);
    const bool own_relu = params.scalars[0] == kOwnRelu, joined_relu = params.scalars[0] == kJoinedRelu,
               two = params.scalars[1] == 2.f;
    const Element *const norm_x = (const Element*)params.p.p[kNormX], *const dy2 = (const Element*)params.p.p[kMore];
    const Element* const z = (const Element*)params.p.p[kMore + two];
    const int first_channel = tile.n * P::kN + fragment_channel(threadIdx.x % 32);
    Lines lines[2];
    const auto fetch = [&](int column) {
      const int channel = first_channel + 32 * column;
      AT_UNROLL for (int i = 0; i < 2 * P::kBlocks; ++i) {
        const int pixel = pixels.at[i / 2][i % 2];
        if (pixel < 0 || channel >= params.k) continue;
        const int64_t offset = (int64_t)pixel * params.k + channel;
        lines[column % 2].x[i].read(norm_x + offset);
        if (two) lines[column % 2].dy2[i].read(dy2 + offset);
        if (joined_relu) lines[column % 2].z[i].read(z + offset);
      }
    };
    fetch(0);
    AT_UNROLL for (int column = 0; column < Totals::kColumns; ++column) {
      if (column + 1 < Totals::kColumns) fetch(column + 1);
      const int channel = first_channel + 32 * column;
      const Lines& here = lines[column % 2];
      const float* const statistics = (const float*)params.p.p[kStatistics] + min(channel, params.k - 8);
      if (two || joined_relu) {
        AT_UNROLL for (int i = 0; i < 2 * P::kBlocks; ++i) {
          float v[8];
          load_fragment(v, accum, i / 2, i % 2, column);
          AT_UNROLL for (int e = 0; e < 8; ++e) {
            if (two) v[e] += to_float(here.dy2[i].elements[e]);
            if (joined_relu) v[e] = to_float(here.z[i].elements[e]) > 0.f ? v[e] : 0.f;
          }
          store_fragment(v, accum, i / 2, i % 2, column);
        }
      }
      if (own_relu) {
        float scale[8], shift[8];
        load_constant(scale, statistics + 3 * params.k), load_constant(shift, statistics + 4 * params.k);
        AT_UNROLL for (int i = 0; i < 2 * P::kBlocks; ++i) {
          float v[8];
          load_fragment(v, accum, i / 2, i % 2, column);
          AT_UNROLL for (int e = 0; e < 8; ++e)  // see batch_norm_gradient_sums.cu.j2
            v[e] = to_float(here.x[i].elements[e]) * scale[e] > -shift[e] ? v[e] : 0.f;
          store_fragment(v, accum, i / 2, i % 2, column);
        }
      }
      float mean[8], sum[8] = {}, products[8] = {};
      load_constant(mean, statistics);
      AT_UNROLL for (int i = 0; i < 2 * P::kBlocks; ++i) {
        if (!pixels.counts[i / 2][i % 2] || channel >= params.k) continue;
        float v[8];
        load_fragment(v, accum, i / 2, i % 2, column);
        AT_UNROLL for (int e = 0; e < 8; ++e) {
          sum[e] += v[e];
          products[e] += v[e] * (to_float(here.x[i].elements[e]) - mean[e]);
        }
      }
      own.first[column] += Totals::over_rows(sum), own.second[column] += Totals::over_rows(products);
    }
  }

  AT_DEVICE static void store_total(const Params& params, int channel, const Total& all) {
    const float* const statistics = (const float*)params.p.p[kStatistics] + channel;
    const float mean = __ldg(statistics), factor = __ldg(statistics + 2 * params.k);
    const float share = -__ldg(statistics + 3 * params.k) / params.rows, by_weight = all.second * factor;
    const float slope = share * factor * by_weight;
    float* const y = (float*)params.p.p[kSums] + channel;
    y[0] = all.first;
    y[params.k] = by_weight;
    y[2 * params.k] = slope;
    y[3 * params.k] = share * all.first - slope * mean;
  }
};

}  // namespace at
