// Weight gradient of a convolution for up to four input channels, channels last: mma.sync or wgmma with float32
// sums, the same bits in each run.
//
// The sum runs over pixels of dy, 16 a product. A product's rows are output channels, its columns are elements of x
// that a row of the filter meets. These are contiguous in memory, but they begin at any pixel, and ldmatrix reads rows
// that begin at multiples of 16 bytes. So a row of x lies in shared memory as slots of 16 bytes: slot i holds the
// pixels i * stride to i * stride + kPixels - 1. Neighbouring taps that are in one slot are a group of eight columns;
// group j of the pixel q of dy is the slot q + j * kStep. Slots of stride 1 overlap, so a pixel lies in several of
// them. Eight slots are a core matrix of wgmma that is contiguous along its columns, and its core matrices may overlap.
//
// A block walks down the rows of dy. A row meets kFilter rows of x, of which kStride are new; kStages - 1 rows are
// loaded ahead. With mma.sync each warp has the sums of kTogether rows of the filter, for all output channels of the
// tile, and kParts warps share the pixels of a row. With wgmma a warp has the sums of 16 output channels for the whole
// filter, dy is the operand in registers, and kParts warpgroups share the pixels. Blocks split the rows. The last block
// of each group of blocks adds up the sums of the group, and the last group those of all groups.
#pragma once
#include "common/copies.cuh"
#include "common/mma.cuh"
#include "common/ptx/ptx.cuh"
#include "common/transposed_matrices.cuh"
#include "cuda/last_block.cuh"

namespace at {

template <typename Config>
struct NarrowWgrad {
  using Element = typename Config::Element;
  using Launch = typename Config::Launch;
  static constexpr int kFilter = Config::kFilter, kStride = Config::kStride, kChannels = Config::kChannels;
  static constexpr int kM = Config::kM;  // output channels of a tile
  static constexpr int kQ = Config::kQ;  // columns of a strip of dy
  static constexpr bool kWgmma = Config::kWgmma;
  static constexpr int kParts = Config::kParts, kTogether = kWgmma ? kFilter : Config::kTogether;
  static constexpr int kStages = Config::kStages;

  static constexpr int kPad = kFilter / 2;
  static constexpr int kPixels = 8 / kChannels / kStride * kStride;  // of a slot
  static constexpr int kShift = kPad % kStride;                      // taps before the first, so that slots are aligned
  static constexpr int kGroups = (kFilter + kShift + kPixels - 1) / kPixels;
  static constexpr int kStep = kPixels / kStride;  // slots from a group of taps to the next
  static constexpr int kSlots = kQ + kStep * (kGroups - 1);
  static constexpr int kAccess = kStride * kChannels % 2 == 0 ? 2 : 1;  // elements of a load of x
  static constexpr int kLoads = kPixels * kChannels / kAccess;          // of a slot

  static constexpr int kRowGroups = (kFilter + kTogether - 1) / kTogether;
  static constexpr int kThreads = kWgmma ? 128 * kParts : 32 * kRowGroups * kParts;
  static constexpr int kBlocks = kWgmma ? 1 : kM / 16;  // blocks of 16 output channels of a warp
  static constexpr bool kCopies = kAccess == 2;         // x by cp.async; else through registers, one row ahead
  static constexpr int kNewSlots = kStride * kSlots, kSlotLoads = (kNewSlots + kThreads - 1) / kThreads;
  static constexpr int kDyRow = kM * (int)sizeof(Element), kUnits = kDyRow / 16;  // of a pixel of dy
  static constexpr int kDyBytes = kQ * kDyRow;
  static constexpr int kRing = kFilter + kStride * (kStages - 1), kSlotBytes = 16;
  static constexpr int kX = kStages * kDyBytes;  // in shared memory, behind the rows of dy
  static constexpr int kElements = kFilter * kFilter * kChannels, kSums = kM * kElements;
  static constexpr int kPipelineBytes = kX + kRing * kSlots * kSlotBytes, kSumBytes = kSums * (int)sizeof(float);
  static constexpr int kFlag = (kPipelineBytes > kSumBytes ? kPipelineBytes : kSumBytes);
  static constexpr int kSharedBytes = kFlag + (int)sizeof(int);
  static constexpr int kGroupBlocks = 16;  // blocks of a group
  enum { kDyOperand = 0, kXOperand = 1, kDwOperand = 2 };
  static_assert(kM % 32 == 0 && kQ % 16 == 0 && kSums % 4 == 0 && (!kWgmma || kM == 64), "no such tile");
  static_assert(kCopies || kStages == 2, "through registers, params is loaded one row ahead");

  struct Params {
    int n, h, w, k, out_h, out_w;
    int strips, blocks, groups;  // groups of blocks
    float scalars[AT_MAX_SCALARS];
    at_pointers p;
  };
  using Accum = float[kTogether * kBlocks][kGroups * 4];

  AT_DEVICE static void run(const Params& params, char* memory) {
    const uint32_t smem = ptx::cast_smem_ptr_to_uint(memory);
    Accum accum = {};
    for (int i = threadIdx.x; kCopies && i < kRing * kSlots; i += kThreads)
      ptx::st_shared(smem + kX + i * kSlotBytes, make_uint4(0, 0, 0, 0));  // copies leave elements that no tap meets
    __syncthreads();
    griddepcontrol_wait();
    const int last = first_row(params, blockIdx.x + 1);
    for (int row = first_row(params, blockIdx.x); row < last;) {
      const int begin = row % params.out_h, end = min(params.out_h, begin + last - row),
                image = row / params.out_h / params.strips;
      walk(params, smem, Strip{image, row / params.out_h % params.strips * kQ, begin, end}, accum);
      row += end - begin;
    }
    launch_dependents();
    add_parts((float*)memory, accum);
    finish(params, (float*)memory, (int*)(memory + kFlag));
  }

  AT_DEVICE static void prepare(const at_conv2d& a, at_prepared* out) {
    const int blocks = a.launch[Launch::kBlocks];
    const int64_t strips = ceil_div(a.q, kQ), rows = a.n * strips * a.p, tiles = ceil_div(a.k, kM);
    if (a.c != kChannels || a.r != kFilter || a.s != kFilter) return refused(out, "channels or filter do not fit");
    if (a.stride_h != kStride || a.stride_w != kStride) return refused(out, "the stride does not fit");
    if (a.pad_h != kPad || a.pad_w != kPad) return refused(out, "the padding must be half of the filter, rounded down");
    if (a.dilation_h != 1 || a.dilation_w != 1 || a.groups != 1) return refused(out, "dilation and groups must be 1");
    if (a.k % 8) return refused(out, "k must be a multiple of 8");
    if (a.w * kChannels % kAccess) return refused(out, "w times c must be even");
    if (rows * tiles > 1 << 30) return refused(out, "dy has too many rows");
    if (blocks < 1 || blocks > rows) return refused(out, "blocks must be at least 1, and at most the rows of dy");
    const int groups = (int)ceil_div(blocks, kGroupBlocks);
    Params params{a.n, a.h, a.w, a.k, a.p, a.q, (int)strips, blocks, groups, {}, {}};
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.scalars[i] = a.scalars[i];
    const int64_t workspace = counter_bytes(tiles, groups) + tiles * (blocks + groups) * kSumBytes;
    prepared(out, params, blocks, (int)tiles, 1, kThreads, kSharedBytes, blocks > 1 ? workspace : 0);
  }

 private:
  // Rows of dy of a strip of an image, from `begin` on.
  struct Strip {
    int image, q, begin, end;
  };
  // What a thread loads of the new rows of x for a row of dy.
  struct Staged {
    Pack<Element, 8> slots[kSlotLoads];
    AT_DEVICE void read(const Params& params, const Strip& strip, int p) {
      AT_UNROLL for (int i = 0; i < kSlotLoads; ++i) {
        const int slot = threadIdx.x + i * kThreads;
        if (slot < kNewSlots)
          slots[i] = load_slot(params, strip, p * kStride - kPad + kFilter - kStride + slot / kSlots, slot % kSlots);
      }
    }
    AT_DEVICE void write(uint32_t smem, int row) const {
      AT_UNROLL for (int i = 0; i < kSlotLoads; ++i) {
        const int slot = threadIdx.x + i * kThreads;
        if (slot < kNewSlots) ptx::st_shared(smem + kX + place(row + slot / kSlots, slot % kSlots), slots[i].words[0]);
      }
    }
  };

  // The rows of dy in their order: image, strip, row.
  AT_DEVICE static int first_row(const Params& params, int block) {
    return (int)((int64_t)params.n * params.strips * params.out_h * block / params.blocks);
  }

  AT_DEVICE static void walk(const Params& params, uint32_t smem, const Strip& strip, Accum& accum) {
    if constexpr (!kCopies) {
      for (int i = threadIdx.x; i < kFilter * kSlots; i += kThreads)
        write_slot(smem, i, load_slot(params, strip, strip.begin * kStride - kPad + i / kSlots, i % kSlots));
    }
    AT_UNROLL for (int ahead = 0; ahead < kStages - 1; ++ahead) {
      if (strip.begin + ahead < strip.end) load(params, smem, strip, strip.begin + ahead);
      commit_copies();
    }
    for (int p = strip.begin; p < strip.end; ++p) {
      wait_for_copies<kStages - 2>();
      if constexpr (kWgmma) ptx::fence_view_async_shared();
      __syncthreads();
      const int next = p + kStages - 1;
      Staged staged;
      if (next < strip.end) {
        load(params, smem, strip, next);
        if constexpr (!kCopies) staged.read(params, strip, next);
      }
      commit_copies();
      const int row = (p - strip.begin) * kStride;
      if constexpr (kWgmma) multiply_warpgroup(smem + p % kStages * kDyBytes, smem + kX, row, accum);
      else multiply(smem + p % kStages * kDyBytes, smem + kX, row, accum);
      if (!kCopies && next < strip.end) staged.write(smem, (next - strip.begin) * kStride + kFilter - kStride);
    }
    __syncthreads();  // the next strip begins with other rows
  }

  // Loads a row of dy, and the rows of x that it meets and the row before does not.
  AT_DEVICE static void load(const Params& params, uint32_t smem, const Strip& strip, int p) {
    load_dy(params, smem, strip, p);
    if constexpr (kCopies) {
      const bool is_first = p == strip.begin;
      const int first =
          (p - strip.begin) * kStride + (is_first ? 0 : kFilter - kStride);  // since the strip's first row
      for (int i = threadIdx.x; i < (is_first ? kFilter * kSlots : kNewSlots); i += kThreads) {
        const int row = first + i / kSlots, slot = i % kSlots;
        copy_slot(params, strip, strip.begin * kStride - kPad + row, slot, smem + kX + place(row, slot));
      }
    }
  }

  // Where a slot of a row of x lies, the strip's first row being row 0.
  AT_DEVICE static int place(int row, int slot) { return (row % kRing * kSlots + slot) * kSlotBytes; }

  // Copies a slot; zeros stand for pixels beyond the image.
  AT_DEVICE static void copy_slot(const Params& params, const Strip& strip, int row, int slot, uint32_t to) {
    const int pixel = (strip.q + slot) * kStride - kPad - kShift;
    const bool in_image = row >= 0 && row < params.h;
    const Element* const all = (const Element*)params.p.p[kXOperand];
    const Element* const from = all + ((int64_t)(strip.image * params.h + row) * params.w + pixel) * kChannels;
    AT_UNROLL for (int i = 0; i < kLoads; ++i) {
      const int met = pixel + i * kAccess / kChannels;  // a copy of two pixels begins at an even one, and w is even
      const bool inside = in_image && met >= 0 && met < params.w;
      copy_async(to + i * 4, inside ? from + i * kAccess : all, 4, inside);
    }
  }

  // The same through registers, for pixels that are not aligned to 32 bits.
  AT_DEVICE static Pack<Element, 8> load_slot(const Params& params, const Strip& strip, int row, int slot) {
    Pack<Element, 8> found;
    found.words[0] = make_uint4(0, 0, 0, 0);
    const int pixel = (strip.q + slot) * kStride - kPad - kShift;
    if (row < 0 || row >= params.h) return found;
    const Element* const from = (const Element*)params.p.p[kXOperand] +
                                ((int64_t)(strip.image * params.h + row) * params.w + pixel) * kChannels;
    AT_UNROLL for (int i = 0; i < kPixels * kChannels; ++i) {
      const int met = pixel + i / kChannels;
      if (met >= 0 && met < params.w) found.elements[i] = from[i];
    }
    return found;
  }

  AT_DEVICE static void write_slot(uint32_t smem, int slot, const Pack<Element, 8>& values) {
    ptx::st_shared(smem + kX + slot * kSlotBytes, values.words[0]);
  }

  // Units of a pixel of dy lie in another order for each pixel, so that eight pixels' meet all banks.
  AT_DEVICE static int dy_offset(int pixel, int unit) {
    const int key = kUnits >= 8 ? pixel % 8 : pixel / 2 % 4;
    return pixel * kDyRow + (unit ^ key) * 16;
  }

  AT_DEVICE static void load_dy(const Params& params, uint32_t smem, const Strip& strip, int p) {
    const uint32_t to = smem + p % kStages * kDyBytes;
    const Element* const row = (const Element*)params.p.p[kDyOperand] +
                               ((int64_t)strip.image * params.out_h + p) * params.out_w * params.k + blockIdx.y * kM;
    for (int i = threadIdx.x; i < kQ * kUnits; i += kThreads) {
      const int pixel = i / kUnits, unit = i % kUnits, q = strip.q + pixel;
      const bool inside = q < params.out_w && (int)blockIdx.y * kM + unit * 8 < params.k;
      copy_async(to + dy_offset(pixel, unit), inside ? row + (int64_t)q * params.k + unit * 8 : row, 16, inside);
    }
  }

  // row: of x, the first that the row of dy meets.
  AT_DEVICE static void multiply(uint32_t dy, uint32_t slots, int row, Accum& accum) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = warp / kParts * kTogether;
    const int a_pixel = lane % 8 + lane / 16 * 8, a_unit = lane / 8 % 2;
    const int b_slot = lane % 16 + lane / 16 * kStep;
    uint32_t rows[kTogether];
    AT_UNROLL for (int i = 0; i < kTogether; ++i)
      rows[i] = slots + place(row + first + i, 0);
    AT_UNROLL for (int round = 0; round < (kQ / 16 + kParts - 1) / kParts; ++round) {
      const int pixel = (round * kParts + warp % kParts) * 16;
      if (kQ / 16 % kParts && pixel >= kQ) break;
      uint32_t a[kBlocks][4];
      AT_UNROLL for (int i = 0; i < kBlocks; ++i)
        load_matrices_transposed(a[i], dy + dy_offset(pixel + a_pixel, 2 * i + a_unit));
      AT_UNROLL for (int i = 0; i < kTogether; ++i) {
        if (kFilter % kTogether && first + i >= kFilter) break;
        uint32_t b[kGroups / 2 * 2 + 2][2];
        AT_UNROLL for (int j = 0; j + 1 < kGroups; j += 2) {
          uint32_t both[4];
          load_matrices_transposed(both, rows[i] + (pixel + b_slot + j * kStep) * kSlotBytes);
          b[j][0] = both[0], b[j][1] = both[1], b[j + 1][0] = both[2], b[j + 1][1] = both[3];
        }
        if constexpr (kGroups % 2)
          load_matrices_transposed(b[kGroups - 1], rows[i] + (pixel + lane % 16 + (kGroups - 1) * kStep) * kSlotBytes);
        AT_UNROLL for (int j = 0; j < kGroups; ++j) AT_UNROLL
          for (int m = 0; m < kBlocks; ++m)
            mma<Element>(reinterpret_cast<float (&)[4]>(accum[i * kBlocks + m][j * 4]), a[m], b[j][0], b[j][1]);
      }
    }
  }

  AT_DEVICE static void multiply_warpgroup(uint32_t dy, uint32_t slots, int row, Accum& accum) {
    constexpr uint32_t kHi = kStep * kSlotBytes / 16;    // no swizzle; from eight columns to the next
    constexpr uint32_t kLo = 8 * kSlotBytes / 16 << 16;  // from eight pixels to the next
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int a_pixel = lane % 8 + lane / 16 * 8, a_unit = warp % 4 * 2 + lane / 8 % 2;
    uint32_t rows[kFilter];
    AT_UNROLL for (int i = 0; i < kFilter; ++i)
      rows[i] = (slots + place(row + i, 0) & 0x3ffff) >> 4 | kLo;
    uint32_t a[2][4];
    ptx::warpgroup_fence_operand(accum);
    AT_UNROLL for (int round = 0; round < (kQ / 16 + kParts - 1) / kParts; ++round) {
      const int pixel = ptx::warp_uniform(round * kParts + warp / 4) * 16;
      if (kQ / 16 % kParts && pixel >= kQ) break;
      load_matrices_transposed(a[round % 2], dy + dy_offset(pixel + a_pixel, a_unit));
      ptx::warpgroup_arrive();
      AT_UNROLL for (int i = 0; i < kFilter; ++i)
        Config::wgmma(accum[i], a[round % 2], ptx::SmemDescriptor{rows[i] + pixel, kHi}, 1);
      ptx::warpgroup_commit_batch();
      ptx::warpgroup_wait<1>();
    }
    ptx::warpgroup_wait<0>();
    ptx::warpgroup_fence_operand(accum);
  }

  // ---- The end: sums of all blocks ----

  // Writes the block's sums in the order of dw to shared memory.
  AT_DEVICE static void add_parts(float* to, const Accum& accum) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = kWgmma ? 0 : warp / kParts * kTogether;
    const int channel = lane / 4 + (kWgmma ? warp % 4 * 16 : 0);
    AT_UNROLL for (int part = 0; part < kParts; ++part) {
      if ((kWgmma ? warp / 4 : warp % kParts) == part) {
        AT_UNROLL for (int i = 0; i < kTogether; ++i) AT_UNROLL
          for (int j = 0; j < kGroups; ++j) AT_UNROLL
            for (int e = 0; e < 2; ++e) {
              const int element = lane % 4 * 2 + e;  // of the slot
              const int tap = j * kPixels + element / kChannels - kShift;
              if (first + i >= kFilter || element >= kPixels * kChannels || tap < 0 || tap >= kFilter) continue;
              float* const at = to + ((first + i) * kFilter + tap) * kChannels + element % kChannels;
              AT_UNROLL for (int m = 0; m < kBlocks; ++m) AT_UNROLL
                for (int half = 0; half < 2; ++half) {
                  float& sum = at[(m * 16 + half * 8 + channel) * kElements];
                  const float own = accum[i * kBlocks + m][j * 4 + half * 2 + e];
                  sum = part ? sum + own : own;
                }
            }
      }
      __syncthreads();
    }
  }

  AT_DEVICE static int64_t counter_bytes(int64_t tiles, int groups) {
    return ceil_div(tiles * (groups + 1) * (int64_t)sizeof(int), 128) * 128;
  }

  AT_DEVICE static void finish(const Params& params, const float* own, int* flag) {
    const auto store_total = [&](int i, const float (&v)[4]) { store_sums(params, i, v); };
    if (params.blocks == 1) return total((const float4*)own, 1, store_total);
    // The workspace: for each tile a counter for each group and one for all; then the sums of blocks and of groups.
    int* const counters = (int*)params.p.p[AT_WORKSPACE] + blockIdx.y * (params.groups + 1);
    float4* const blocks = (float4*)((char*)params.p.p[AT_WORKSPACE] + counter_bytes(gridDim.y, params.groups)) +
                           (int64_t)blockIdx.y * (params.blocks + params.groups) * (kSums / 4);
    float4* const groups = blocks + (int64_t)params.blocks * (kSums / 4);
    const auto store_in = [](float4* to) {
      return [to](int i, const float (&v)[4]) { to[i] = make_float4(v[0], v[1], v[2], v[3]); };
    };
    total((const float4*)own, 1, store_in(blocks + (int64_t)blockIdx.x * (kSums / 4)));
    const int group = blockIdx.x / kGroupBlocks, first = group * kGroupBlocks;
    const int members = min(kGroupBlocks, params.blocks - first);
    if (!is_last_block(counters + group, members, flag)) return;
    const float4* const of_group = blocks + (int64_t)first * (kSums / 4);
    if (params.groups == 1) return total(of_group, members, store_total);
    total(of_group, members, store_in(groups + (int64_t)group * (kSums / 4)));
    if (is_last_block(counters + params.groups, params.groups, flag)) total(groups, params.groups, store_total);
  }

  // Adds up `count` arrays of sums; calls store(i, v) for the four from 4 i on.
  template <typename Store>
  AT_DEVICE static void total(const float4* from, int count, const Store& store) {
    for (int i = threadIdx.x; i < kSums / 4; i += kThreads) {
      float v[4] = {};
#pragma unroll 8
      for (int part = 0; part < count; ++part) {
        const float4 other = from[(int64_t)part * (kSums / 4) + i];
        v[0] += other.x, v[1] += other.y, v[2] += other.z, v[3] += other.w;
      }
      store(i, v);
    }
  }

  AT_DEVICE static void store_sums(const Params& params, int i, const float (&v)[4]) {
    AT_UNROLL for (int e = 0; e < 4; ++e) {
      const int element = 4 * i + e;
      if ((int)blockIdx.y * kM + element / kElements >= params.k) return;
      const int64_t offset = (int64_t)blockIdx.y * kSums + element;
      float one[1] = {v[e]};
      Config::apply(one, params.p.p, params.scalars, element % kChannels, offset);
      store(one, (Element*)params.p.p[kDwOperand] + offset);
    }
  }
};

}  // namespace at
