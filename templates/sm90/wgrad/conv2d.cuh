// Weight gradient of a convolution for Hopper: TMA loads, wgmma, NHWC, float32 sums, the same bits in each run.
//
// The sum over pixels runs over 16 images of one pixel at a time: a product takes 16 images of a pixel of dy (64
// channels of the output) and of the pixel of x that a filter tap meets (channels of the input). Both are boxes whose
// rows are images, [column][image][64 channels], so they are operands of wgmma with channels as the contiguous axis,
// and any stride, padding and dilation is only another pixel. Taps that meet the padding are skipped: above and below
// the image always, at its sides if each tap is a product of its own. Joined taps of a row are one product instead,
// whose columns of 64 channels are neighbouring pixels of x; then boxes have zeros at their sides.
//
// Each warpgroup has 64 output channels and one row of the filter, and walks over the rows of x. A row of x serves all
// filter rows, each with another row of dy, so both are read once. Two warps load them into rings.
//
// Blocks split the pixels. Those of a cluster add their sums through distributed shared memory, each for a part of the
// tile. With several clusters a tile they add through a workspace: the last one to arrive adds all, in fixed order.
#pragma once
#include "common/ptx/ptx.cuh"
#include "sm90/wgrad/plan.cuh"
#include "sm90/wgrad/sums.cuh"

namespace at {

template <typename Config>
struct HopperWgrad : WgradSums<WgradPlan<Config>> {
  using P = WgradPlan<Config>;
  using End = WgradSums<P>;
  using Element = typename P::Element;
  using Params = typename P::Params;
  using Layout = typename P::Layout;
  using Tile = typename P::Tile;
  using Segment = typename P::Segment;
  using Accum = typename P::Accum;

  AT_DEVICE static void run(const Params& params, char* memory) {
    const Layout smem(params, align_smem(ptx::cast_smem_ptr_to_uint(memory)));
    const int warp = ptx::warp_uniform(threadIdx.x / 32);
    const Tile tile(params);
    if (warp == 0) {
      init_pipeline(smem.dy_pipeline, params.dy_stages, 4 * P::kGroups);
      init_pipeline(smem.x_pipeline, params.x_stages, 4 * P::kGroups);
      ptx::fence_barrier_init();
    }
    if (warp >= 4 * P::kGroups) ptx::prefetch_tensormap(warp == 4 * P::kGroups ? params.dy_map : params.x_map);
    __syncthreads();
    if (warp < 4 * P::kGroups) {
      multiply_all(params, smem, tile);
    } else {
      griddepcontrol_wait();
      if (ptx::elect_one_sync()) {
        if (warp == 4 * P::kGroups) load_dy(params, smem, tile);
        else load_x(params, smem, tile);
      }
      __syncwarp();
    }
    End::finish(params, smem, tile);
  }

 private:
  AT_DEVICE static void load_dy(const Params& params, const Layout& smem, const Tile& tile) {
    const Pipeline pipeline = smem.dy_pipeline;
    const int bytes = P::dy_bytes(params), last = tile.first_row(params, 1);
    PipelineState state{0, 1};
    for (int row = tile.first_row(params); row < last;) {
      const Segment part(params, tile, row, last);
      for (int p = part.begin; p < part.end; ++p, state.advance(params.dy_stages)) {
        const uint32_t full = pipeline.producer_acquire(state), to = smem.dy + state.index * bytes;
        ptx::mbarrier_arrive_expect_tx(full, bytes);
        AT_UNROLL for (int i = 0; i < P::kMChunks; ++i)
          ptx::tma_load_4d(to + i * params.columns * P::kPixelBytes, params.dy_map, full, tile.k + i * P::kChunk,
                           part.n, part.q, p);
      }
      row += part.end - part.begin;
    }
  }

  AT_DEVICE static void load_x(const Params& params, const Layout& smem, const Tile& tile) {
    const Pipeline pipeline = smem.x_pipeline;
    const int bytes = P::x_bytes(params), last = tile.first_row(params, 1);
    PipelineState state{0, 1};
    for (int row = tile.first_row(params); row < last;) {
      const Segment part(params, tile, row, last);
      const int w = part.first_w(params, tile);
      for (int h = part.first_h; h < part.end_h; h += part.step_h(params), state.advance(params.x_stages)) {
        const uint32_t full = pipeline.producer_acquire(state), to = smem.x + state.index * bytes;
        ptx::mbarrier_arrive_expect_tx(full, bytes);
        AT_UNROLL for (int i = 0; i < P::kNChunks; ++i)
          ptx::tma_load_4d(to + i * params.width * P::kPixelBytes, params.x_map, full, tile.c + i * P::kChunk, part.n,
                           w, h);
      }
      row += part.end - part.begin;
    }
  }

  // Each warp releases a stage, so that none is a round of a ring behind the others.
  // Used: the stages that the products before this row of x read; -1: none.
  struct Pending {
    int dy = -1, x = -1;
  };

  AT_DEVICE static void release(const Layout& smem, Pending& pending) {
    if (threadIdx.x % 32 == 0) {
      if (pending.dy >= 0) smem.dy_pipeline.consumer_release(pending.dy);
      if (pending.x >= 0) smem.x_pipeline.consumer_release(pending.x);
    }
    pending = {};
  }

  // Releases a stage that this warpgroup does not read. It waits for it first: a barrier counts each warp once for each
  // load.
  AT_DEVICE static void skip(const Pipeline& pipeline, PipelineState& state, int stages) {
    pipeline.consumer_wait(state);
    if (threadIdx.x % 32 == 0) pipeline.consumer_release(state.index);
    state.advance(stages);
  }

  // The columns of a segment that meet the image, for each product, and where the first tap lies in a box of x.
  struct Columns {
    int shift, begin[P::kProducts], end[P::kProducts];
    AT_DEVICE bool any() const {
      bool found = false;
      AT_UNROLL for (int i = 0; i < P::kProducts; ++i)
        found |= begin[i] < end[i];
      return found;
    }
  };

  // The same of the whole image. The segments of small images are short, so that nothing is divided for each.
  struct AllColumns {
    int first, begin[P::kProducts], end[P::kProducts];
    AT_DEVICE AllColumns(const Params& params, const Tile& tile) {
      first = tile.s * params.dilation_w - params.pad_w;
      AT_UNROLL for (int i = 0; i < P::kProducts; ++i) {
        const int at = first + i * params.dilation_w;  // the pixel of column 0
        begin[i] = P::kJoined || at >= 0 ? 0 : (params.stride_w - 1 - at) / params.stride_w;
        end[i] = P::kJoined       ? params.out_w
                 : at >= params.w ? 0
                                  : min(params.out_w, (params.w - at + params.stride_w - 1) / params.stride_w);
      }
    }
    AT_DEVICE Columns of(const Params& params, const Tile& tile, const Segment& part) const {
      Columns columns;
      columns.shift = first + part.q * params.stride_w - part.first_w(params, tile);
      AT_UNROLL for (int i = 0; i < P::kProducts; ++i)
        columns.begin[i] = max(0, begin[i] - part.q), columns.end[i] = min(params.columns, end[i] - part.q);
      return columns;
    }
  };

  AT_DEVICE static void multiply_all(const Params& params, const Layout& smem, const Tile& tile) {
    const int group = ptx::warp_uniform(threadIdx.x / 128);
    const int filter_row = group % P::kFilterRows, chunk = group / P::kFilterRows;
    const int last = tile.first_row(params, 1), above = params.pad_h - (tile.r + filter_row) * params.dilation_h;
    // The rows of dy whose row of x, p * stride_h - above, is in the image.
    const int first_met = above > 0 ? (above + params.stride_h - 1) / params.stride_h : 0;
    const int end_met = params.h + above > 0 ? (params.h - 1 + above) / params.stride_h + 1 : 0;
    const AllColumns all(params, tile);
    const Pipeline dy_pipeline = smem.dy_pipeline, x_pipeline = smem.x_pipeline;
    const int dy_bytes = P::dy_bytes(params), x_bytes = P::x_bytes(params), step_h = Segment::step_h(params);
    const uint32_t own_dy = smem.dy + chunk * params.columns * P::kPixelBytes;
    PipelineState dy{0, 0}, in{0, 0};
    Accum accum = {};
    Pending pending;
    ptx::warpgroup_fence_operand(accum);
    for (int row = tile.first_row(params); row < last;) {
      const Segment part(params, tile, row, last);
      const Columns columns = all.of(params, tile, part);
      int p = part.begin, h = part.first_h;  // the rows of the stages that come next
      const int end = columns.any() ? min(part.end, end_met) : 0;
      for (int at = max(p, first_met); at < end; ++at) {
        const int met = at * params.stride_h - above;
        for (; p < at; ++p) skip(dy_pipeline, dy, params.dy_stages);
        for (; h < met; h += step_h) skip(x_pipeline, in, params.x_stages);
        dy_pipeline.consumer_wait(dy);
        x_pipeline.consumer_wait(in);
        // Then the products of the row before are complete.
        multiply_row(params, columns, own_dy + dy.index * dy_bytes, smem.x + in.index * x_bytes, accum);
        release(smem, pending);
        pending = {dy.index, in.index};
        dy.advance(params.dy_stages), in.advance(params.x_stages);
        ++p, h += step_h;
      }
      ptx::warpgroup_wait<0>();
      release(smem, pending);
      for (; p < part.end; ++p) skip(dy_pipeline, dy, params.dy_stages);
      for (; h < part.end_h; h += step_h) skip(x_pipeline, in, params.x_stages);
      row += part.end - part.begin;
    }
    ptx::warpgroup_fence_operand(accum);
    launch_dependents();
    ptx::named_barrier_sync<P::kConsumers, 128 * P::kGroups>();  // no warpgroup reads the rings any more
    store_sums(smem, filter_row, chunk, accum);
  }

  AT_DEVICE static void multiply_row(const Params& params, const Columns& columns, uint32_t dy, uint32_t in,
                                     Accum& accum) {
    constexpr int kPixel = P::kPixelBytes / 16;
    const uint32_t hi = ptx::descriptor_hi<128>(8 * 128);
    // Columns of a product beyond 64 channels are those of the next tap or, with one tap, of the next channels.
    const int tap = params.dilation_w * P::kPixelBytes, channels = params.width * P::kPixelBytes;
    const uint32_t first_a = ptx::transposed_descriptor_lo(dy, 0);
    const uint32_t first_b = ptx::transposed_descriptor_lo(in, P::kJoined && P::kFilterColumns > 1 ? tap : channels);
    // The columns that meet just the products first to last, which take turns, since each waits for its sums. A product
    // further to the left of the filter begins and ends later.
    AT_UNROLL for (int first = 0; first < P::kProducts; ++first) {
      AT_UNROLL for (int last = first; last < P::kProducts; ++last) {
        const bool from_left = first == 0, to_right = last + 1 == P::kProducts;
        int q = max(columns.begin[first], to_right ? 0 : columns.end[to_right ? last : last + 1]);
        const int end =
            min(columns.end[last], from_left ? params.columns : columns.begin[from_left ? first : first - 1]);
        uint32_t a = first_a + q * kPixel, b = first_b + (columns.shift + q * params.step_w) * kPixel;
        // Each round waits for the products of the one before: the compiler would serialize a loop that does not wait.
        for (; q < end; ++q, a += kPixel, b += params.step_w * kPixel) {
          ptx::warpgroup_arrive();
          AT_UNROLL for (int images = 0; images < P::kImages / P::kK; ++images) {
            AT_UNROLL for (int i = first; i <= last; ++i)
              Config::wgmma(accum[i], ptx::SmemDescriptor{a + images * (P::kKBytes / 16), hi},
                            ptx::SmemDescriptor{b + i * (tap / 16) + images * (P::kKBytes / 16), hi}, 1);
          }
          ptx::warpgroup_commit_batch();
          ptx::warpgroup_wait<1>();
        }
      }
    }
  }

  AT_DEVICE static void store_sums(const Layout& smem, int filter_row, int chunk, const Accum& accum) {
    constexpr int kTapSums = P::kN / 2;
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const int m = chunk * P::kChunk + 16 * warp + lane / 4;
    AT_UNROLL for (int column = 0; column < P::kFilterColumns; ++column) {
      const int tap = filter_row * P::kFilterColumns + column;
      const uint32_t to = End::sum_row(smem, tap * P::kM + m) + 8 * (lane % 4);
      End::store_columns(to, accum[P::kJoined ? 0 : column], P::kJoined ? column * kTapSums : 0);
    }
  }
};

}  // namespace at
