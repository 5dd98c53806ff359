// The kernel of stem.cuh by wgmma, with the products of a convolution row in flight while the row above is finished.
//
// A warpgroup has two sets of accumulators, which take turns. It issues the products of a row into one set, waits for
// the row above in the other set, and pools and stores that one. So the tensor cores always have a row to work on.
//
// A row's filter needs kFilter rows of the image; the row below needs the same ones without the first kStride and with
// kStride new ones. So operand A consists of blocks of kStride image rows, which stay in registers for all rows of the
// convolution that read them, and of the rest, the last rows of an odd filter. With stride 2, a side of 7 and three
// planes, a row loads one block and the rest: 18 words a thread instead of 42. The products' reads of 64 channels of
// weights already take half of the shared memory's bandwidth. The columns of the im2col matrix are sorted accordingly:
// a step of the products takes both of its halves from one block, or from the rest.
//
// A block that is read for the last time stays in its registers until these products are complete, so there is one slot
// more than a row has blocks. Registers have no dynamic index, so as many rows are unrolled as there are slots. Blocks
// and products also continue over the borders of tiles: image rows that are in registers are not copied again.
#pragma once
#include "cuda/stem.cuh"

namespace at {

template <typename Config>
struct StemAheadKernel : StemKernel<Config> {
  using Base = StemKernel<Config>;
  using typename Base::Column;
  using typename Base::Params;
  using typename Base::Place;
  using typename Base::Problem;
  using typename Base::Accum;
  using Element = typename Base::Element;
  static constexpr int kFilter = Base::kFilter, kStride = Base::kStride, kPlanes = Base::kPlanes, kN = Base::kN;
  static constexpr int kStages = Base::kStages, kThreads = Base::kThreads, kTall = Base::kTall, kTaps = Base::kTaps;
  static constexpr int kPitch = Base::kPitch, kAccess = Base::kAccess, kLines = Base::kLines;
  static constexpr bool kPool = Base::kPool;

  // Operand A of a row of the convolution, in halves of a step: 8 taps of a line.
  static constexpr int kParts = kTaps / 8;  // halves of a line
  static constexpr int kBlocks = kFilter / kStride, kRestRows = kFilter % kStride;
  static constexpr int kBlockHalves = kPlanes * kStride * kParts, kRestHalves = kPlanes * kRestRows * kParts;
  static constexpr int kBlockSteps = kBlockHalves / 2, kRestSteps = (kRestHalves + 1) / 2;
  static_assert(kTaps % 8 == 0 && kBlockHalves % 2 == 0, "a step's halves are of one block");
  static_assert(kBlocks * kBlockSteps + kRestSteps == Base::kSteps, "sorting adds no step");
  static constexpr int kSlots = kBlocks + 1 <= 2 ? 2 : kBlocks + 1 <= 4 ? 4 : 8;  // even: the sets take turns

  static constexpr int kMore = kPool ? 1 : 0;  // rows of the convolution above a block's first tile
  static constexpr int kTileRows = Base::kConvRows - kMore;
  static_assert(kTileRows % kSlots == 0, "tiles are whole rounds of the slots");
  static constexpr int kKept = kStride * (kMore + kBlocks - 1);  // image rows in registers from the tile above

  struct Operands {
    uint32_t blocks[kSlots][kBlockSteps][4];
    uint32_t rest[2][kRestSteps ? kRestSteps : 1][4];
  };

  // Returns where stem.cuh has column k of the im2col matrix.
  AT_DEVICE static constexpr int unsorted(int k) {
    const int half = k / 8, block = half / kBlockHalves;
    const bool rest = block >= kBlocks;
    const int rows = rest ? kRestRows : kStride;
    const int own = rest ? half - kBlocks * kBlockHalves : half % kBlockHalves;  // index in the block or the rest
    if (rest && own >= kRestHalves) return kLines * kTaps;                       // no line: its weights are zero
    const int line = own / kParts;  // kRestRows is not 0 here: without a rest, all halves are of blocks
    const int plane = line / rows, row = (rest ? kBlocks : block) * kStride + line % rows;
    return (plane * kFilter + row) * kTaps + own % kParts * 8 + k % 8;
  }

  // Loads the weights of all steps, each (n, k) in 32 swizzled bytes. A thread has one place in a half of all steps.
  AT_DEVICE static void load_weights(const Params& params, int first_channel, char* shared) {
    static_assert(kN * 8 % kThreads == 0, "all threads have the same number of words");
    const int half = threadIdx.x % 8 / 4;
    AT_UNROLL for (int from = 0; from < kN * 8; from += kThreads) {
      const int n = (from + threadIdx.x) / 8, place = n * 32 + (half ^ n / 4 % 2) * 16 + threadIdx.x % 4 * 4;
      AT_UNROLL for (int step = 0; step < Base::kSteps; ++step) {
        const int k = (half ? unsorted(16 * step + 8) : unsorted(16 * step)) + threadIdx.x % 4 * 2;
        *(uint32_t*)(shared + step * kN * 32 + place) = Base::weights(params, first_channel, n, k);
      }
    }
  }

  // Loads the halves of kRows image rows from row `top` of a tile. words: this thread's first pixel and taps.
  template <int kRows, int kSteps>
  AT_DEVICE static void load_rows(uint32_t (&a)[kSteps][4], const uint32_t* words, int top) {
    words += top * kPitch;
    AT_UNROLL for (int half = 0; half < 2 * kSteps; ++half) {
      const int line = half / kParts;
      const bool known = line < kPlanes * kRows;
      const uint32_t* from = words + (line / kRows * kTall + line % kRows) * kPitch + half % kParts * 4;
      a[half / 2][half % 2 * 2] = known ? from[0] : 0;
      a[half / 2][half % 2 * 2 + 1] = known ? from[Base::kSecond * Base::kPixel] : 0;
    }
  }

  // Loads what a row of the convolution needs beyond the row above. The products of the row two above must be complete.
  // row: in the tile; turn: of the row, modulo kSlots.
  AT_DEVICE static void load_below(Operands& a, const uint32_t* words, int row, int turn) {
    load_rows<kStride>(a.blocks[(turn + kBlocks - 1) % kSlots], words, kStride * (row + kBlocks - 1));
    if constexpr (kRestSteps > 0) load_rows<kRestRows>(a.rest[turn % 2], words, kStride * (row + kBlocks));
  }

  // Issues the products of the row that has this turn.
  AT_DEVICE static void issue(const Operands& a, Accum (&accum)[2], int turn, uint32_t weights) {
    ptx::warpgroup_arrive();
    AT_UNROLL for (int step = 0; step < Base::kSteps; ++step) {
      const uint64_t b = ptx::SmemDescriptor{ptx::descriptor_lo(weights + step * kN * 32), ptx::descriptor_hi<32>(256)};
      if (step < kBlocks * kBlockSteps)
        Config::wgmma(accum[turn % 2], a.blocks[(turn + step / kBlockSteps) % kSlots][step % kBlockSteps], b, step > 0);
      else Config::wgmma(accum[turn % 2], a.rest[turn % 2][step - kBlocks * kBlockSteps], b, step > 0);
    }
    ptx::warpgroup_commit_batch();
  }

  // Waits until at most kPending rows are unfinished; after that a set of accumulators is read.
  template <int kPending>
  AT_DEVICE static void wait(Accum& accum) {
    ptx::warpgroup_wait<kPending>();
    ptx::warpgroup_fence_operand(reinterpret_cast<float (&)[1][kN / 2]>(accum));
  }

  // Pools or stores a row of the convolution. done: the rows of the block's tiles before it; -1 is the row above its
  // first window. last: whether the row is the last one of its window.
  AT_DEVICE static void finish(const Params& params, const Place& at, const Column& column, int done, bool last,
                               const Accum& accum, Accum& best, int conv_p, int conv_q) {
    auto& kept = reinterpret_cast<float (&)[1][kN / 2]>(best);
    if constexpr (kPool) {
      const int conv = 2 * at.row + done;
      if (done >= 0) {
        if (conv < conv_p) Base::take(best, accum);
        if (last) Base::store_pooled(params, at, column, at.row + done / 2, best, conv_q);
      }
      if (last) {
        ptx::copy_accumulators(reinterpret_cast<const float (&)[1][kN / 2]>(accum), kept);
        if (conv < 0) Base::clear(best);
      }
      ptx::warpgroup_fence_operand(kept);
    } else if (done >= 0) {
      Base::store(params, at, column, at.row + done, accum, 0);
      Base::store(params, at, column, at.row + done, accum, 1);
    }
  }

  // Loads share `part` of kCount of a tile without its first kSkipped image rows.
  template <int kSkipped, int kCount>
  AT_DEVICE static void load_share(const Params& params, const Place& at, int row, uint32_t stage, int part) {
    const Problem& a = params.a;
    constexpr int kChunks = kPitch * 2 / kAccess, kLoaded = kTall - kSkipped, kAll = kPlanes * kLoaded * kChunks;
    constexpr int kShare = (kAll + kCount - 1) / kCount;
    const int top = kStride * Base::conv_first(row) - Base::kPad, wide = a.w * Base::kSide;
    const int left = Base::window_first(at) - Base::access_shift(at);
    const Element* x = (const Element*)params.p.p[0] + (int64_t)at.image * Base::kChannels * a.h * a.w;
    const int end = min((part + 1) * kShare, kAll);
    for (int i = part * kShare + threadIdx.x; i < end; i += kThreads) {
      const int line = i / kChunks, chunk = i % kChunks, plane = line / kLoaded, below = kSkipped + line % kLoaded;
      const int h = top + below, element = left + chunk * kAccess;
      const bool inside = h >= 0 && h < a.h && element >= 0 && element < wide;
      const Element* from = x + ((int64_t)plane * a.h + h) * wide + element;
      copy_async(stage + ((plane * kTall + below) * kPitch * 2 + chunk * kAccess) * 2, inside ? from : x, kAccess * 2,
                 inside);
    }
  }

  AT_DEVICE static void run(const Params& params, char* shared) {
    const Problem& a = params.a;
    const Place at(a);
    const Column column(at);
    const int lane = threadIdx.x % 32;
    const int conv_p = (a.h + 2 * Base::kPad - kFilter) / kStride + 1;
    const int conv_q = (a.w + 2 * Base::kPad - kFilter) / kStride + 1;

    uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    const uint32_t aligned = (base + 255) & ~255u;  // the swizzle pattern repeats every 256 bytes
    shared += aligned - base, base = aligned;
    const uint32_t stages = base + Base::kWeightBytes;
    griddepcontrol_wait();
    load_share<0, 1>(params, at, at.row, stages, 0);
    commit_copies();

    // The loads of the weights are behind those of the image: such a layer is a network's first, so that no kernel
    // before it has work left that they could overlap with.
    load_weights(params, at.channel, shared);
    ptx::fence_view_async_shared();

    const uint32_t* words = (const uint32_t*)(shared + Base::kWeightBytes);
    words += (column.strip * Base::kStripPixels + lane / 4 * Base::kFirst) * Base::kPixel + Base::access_shift(at) / 2 +
             lane % 4;

    Operands operands;
    Accum accum[2], best;
    Base::clear(best);
    for (int tile = 0; tile < at.count; ++tile) {
      const int row = at.row + tile * Base::kRows;
      const uint32_t* image = words + tile % kStages * (Base::kStageBytes / 4);
      wait_for_copies<0>();
      __syncthreads();  // the tile is complete, and no thread reads the one before it any more
      if (tile + 1 == at.count) launch_dependents();

      constexpr int kTurn = kSlots - kMore;  // of the first row
      if (tile == 0) {
        AT_UNROLL for (int block = 0; block < kBlocks - 1; ++block)
          load_rows<kStride>(operands.blocks[(kTurn + block) % kSlots], image, kStride * block);
        if constexpr (kPool) {
          load_below(operands, image, 0, kTurn);
          issue(operands, accum, kTurn, base);
        }
      }
      AT_NO_UNROLL for (int y = 0; y < kTileRows; y += kSlots) {
        if (kStages == 2 && tile + 1 < at.count) {
          const uint32_t next = stages + (tile + 1) % 2 * Base::kStageBytes;
          load_share<kKept, kTileRows / kSlots>(params, at, row + Base::kRows, next, y / kSlots);
          commit_copies();
        }
        load_below(operands, image, kMore + y, 0);
        // The row above is complete, but not finished: ptxas serializes all products if accumulators that it has in
        // flight at the end of a loop's body are read in the next iteration.
        wait<0>(accum[1]);
        AT_UNROLL for (int turn = 0; turn < kSlots; ++turn) {
          issue(operands, accum, turn, base);
          wait<1>(accum[(turn + 1) % 2]);
          if (turn + 1 < kSlots) load_below(operands, image, kMore + y + turn + 1, turn + 1);
          const int done = tile * kTileRows + y + turn - 1;
          finish(params, at, column, done, turn % 2 == 0, accum[(turn + 1) % 2], best, conv_p, conv_q);
        }
      }
      if (kStages == 1 && tile + 1 < at.count) {
        __syncthreads();
        load_share<kKept, 1>(params, at, row + Base::kRows, stages, 0);
        commit_copies();
      }
    }
    wait<0>(accum[1]);
    finish(params, at, column, at.count * kTileRows - 1, true, accum[1], best, conv_p, conv_q);
  }
};

}  // namespace at
