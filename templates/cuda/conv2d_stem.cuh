// A network's first layer in front of conv2d.cuh's residual block. Its output is the patch of the first convolution.
// stem_image.cuh describes how the image is read.
#pragma once
#include "cuda/conv2d_products.cuh"

namespace at {

template <typename Config>
struct ImageStem : ImageProducts<Config> {
  using Plan = ImagePlan<Config>;
  using Base = ImageProducts<Config>;
  using typename Base::Element, typename Base::Params, typename Base::Part, typename Base::Pixel, typename Base::Place;
  using typename Base::Accum;
  using Base::kBlocks, Base::kColumns, Base::kImage, Base::kOwn, Base::kVector, Base::kX, Base::multiply;

  using Kept = Pack<Element, kVector>[kOwn][2];

  // The operands in the registers' order of mma.sync: image lines of this thread's rows, and weights of its columns.
  struct Stem {
    uint32_t rows[kBlocks][kImage][4], filters[kImage][4 * kColumns][2];

    // Reads weights only, so it may run before griddepcontrol_wait().
    AT_DEVICE void read_weights(const Params& params, const Part& part) {
      const int filled = ceil_div(params.a.k, 32) * 32;
      AT_UNROLL for (int c = 0; c < kImage; ++c) AT_UNROLL
        for (int n = 0; n < 4 * kColumns; ++n) {
          const int row = min(part.n + 8 * n + part.lane / 4, filled - 1);
          const uint32_t* from =
              (const uint32_t*)params.p.p[Plan::kStemWeight] + (c * filled + row) * 8 + part.lane % 4;
          filters[c][n][0] = from[0], filters[c][n][1] = from[4];
        }
    }

    template <bool kChannelsLast>
    AT_DEVICE void read(const Params& params, const Place& at, const Part& part) {
      AT_UNROLL for (int m = 0; m < kBlocks; ++m) AT_UNROLL
        for (int half = 0; half < 2; ++half) {
          const Pixel own(params, part.m + 16 * m + 8 * half + part.lane / 4);
          const int64_t image = min(at.image + own.image, params.a.n - 1);  // the last tile may hold fewer images
          const int line =
              (kSide * own.row + part.lane % 4) * params.stem.of_row + kSide * own.column * params.stem.of_pixel;
          uint2 pixels[kImage];
          read_line<kChannelsLast>(pixels, params.stem,
                                   (const Element*)params.p.p[kX] + image * params.stem.of_image + line);
          AT_UNROLL for (int c = 0; c < kImage; ++c)
            rows[m][c][half] = pixels[c].x, rows[m][c][2 + half] = pixels[c].y;
        }
    }

    AT_DEVICE void multiply(Accum& accum) const {
      AT_UNROLL for (int c = 0; c < kImage; ++c) AT_UNROLL
        for (int m = 0; m < kBlocks; ++m) AT_UNROLL
          for (int n = 0; n < 4 * kColumns; ++n)
            mma<Element>(accum[m][n], rows[m][c], filters[c][n][0], filters[c][n][1]);
    }
  };
};

}  // namespace at
