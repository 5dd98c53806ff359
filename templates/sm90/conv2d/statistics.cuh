// A convolution that also computes the statistics of its output: the mean of each channel and the sum of squared
// distances from it, for the batch normalization behind it (problem conv2d_statistics).
//
// A warp adds up the values and squares of its pixels of a tile, and combines their mean and squared distances with
// those of its tiles before. So sums cancel only among the 16 kBlocks pixels of a warp in a tile. An output in 16 bits
// has rounded these values by more than what is lost there: its rounding has a variance of (mean 2^-11)^2 / 3, and
// float32 loses mean^2 2^-24.
#pragma once
#include "sm90/conv2d/column_totals.cuh"

namespace at {

// Combines means and sums of squared distances as sums of distances from the first mean. All means are about the same,
// so nothing cancels.
struct MomentSums {
  float count = 0.f, start = 0.f, distances = 0.f, squares = 0.f;
  AT_DEVICE void add(const Total& other) {
    if (count == 0.f) start = other.first;
    const float distance = other.first - start, weighted = other.count * distance;
    count += other.count, distances += weighted, squares += other.second + weighted * distance;
  }
  AT_DEVICE Total total() const {
    const float distance = count > 0.f ? distances / count : 0.f, sum = squares - distances * distance;
    return {count, start + distance, sum < 0.f ? 0.f : sum};  // a rounding error of equal values; NaN stays
  }
};

template <typename Config>
struct StatisticsStore : ColumnTotals<Config, MomentSums, StatisticsStore<Config>> {
  using Totals = ColumnTotals<Config, MomentSums, StatisticsStore<Config>>;
  using P = typename Totals::P;
  using Params = typename P::Params;
  enum { kNormWeight = 3, kNormBias = 4, kStatistics = 5 };  // Conv2dStatistics.operands()

  AT_DEVICE static void add_tile(const Params& params, const typename P::Tile& tile, int first_block,
                                 const typename P::Accum& accum, typename Totals::Own& own) {
    const typename Totals::Pixels pixels(params, tile, first_block);
    if (pixels.in_warp == 0.f) return;
    const float share = 1.f / pixels.in_warp, count = own.count + pixels.in_warp, weight = pixels.in_warp / count;
    AT_UNROLL for (int column = 0; column < Totals::kColumns; ++column) {
      float sum[8] = {}, squares[8] = {};
      AT_UNROLL for (int i = 0; i < 2 * P::kBlocks; ++i) {
        float v[8];
        load_fragment(v, accum, i / 2, i % 2, column);
        AT_UNROLL for (int e = 0; e < 8; ++e) {
          const float value = pixels.counts[i / 2][i % 2] ? v[e] : 0.f;
          sum[e] += value, squares[e] += value * value;
        }
      }
      const float all = Totals::over_rows(sum), mean = all * share;
      const float spread = fmaxf(Totals::over_rows(squares) - all * mean, 0.f), distance = mean - own.first[column];
      own.first[column] += distance * weight;
      own.second[column] += spread + distance * distance * own.count * weight;
    }
    own.count = count;
  }

  AT_DEVICE static void store_total(const Params& params, int channel, const Total& all) {
    const float mean = all.first, factor = 1.f / sqrtf(all.second / all.count + params.scalars[0]);
    const float scale = __ldg((const float*)params.p.p[kNormWeight] + channel) * factor;
    float* const y = (float*)params.p.p[kStatistics] + channel;
    y[0] = mean;
    y[params.k] = all.second / fmaxf(all.count - 1.f, 1.f);
    y[2 * params.k] = factor;
    y[3 * params.k] = scale;
    y[4 * params.k] = __ldg((const float*)params.p.p[kNormBias] + channel) - mean * scale;
  }
};

}  // namespace at
