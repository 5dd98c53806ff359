// How the threads of a grid share all pixels of a tensor, channels last. A block takes a slab of neighbouring channels
// and every `splits`th chunk of pixels. At any time the blocks of a grid therefore access one range of memory.
#pragma once

namespace at {

template <int N>
struct Count {
  static constexpr int kValue = N;
};

// Vector: channels of an access. Items: pixels of a thread in a chunk, whose loads are issued before the first is used.
// Columns: threads side by side along the channels, a power of two up to 32. Threads: those of a block.
template <int Vector, int Items, int Columns, int Threads>
struct PixelColumns {
  static constexpr int kVector = Vector;
  static constexpr int kColumns = Columns;
  static constexpr int kThreads = Threads;
  static constexpr int kLanes = Threads / Columns;  // pixels side by side
  static constexpr int kChunk = kLanes * Items;     // pixels

  int pixels, c, splits, slabs, chunks;
  int slab, split, lane, channel;

  AT_DEVICE PixelColumns(int pixels, int c, int splits)
      : pixels(pixels),
        c(c),
        splits(splits),
        slabs((c + Columns * Vector - 1) / (Columns * Vector)),
        chunks((pixels + kChunk - 1) / kChunk),
        slab(blockIdx.x % slabs),
        split(blockIdx.x / slabs),
        lane(threadIdx.x / Columns),
        channel((slab * Columns + threadIdx.x % Columns) * Vector) {}

  AT_DEVICE bool has_channels() const { return channel < c; }

  // The pixels of a block.
  AT_DEVICE int pixels_of(int split) const {
    const int own = (chunks / splits + (split < chunks % splits)) * kChunk;
    return (chunks - 1) % splits == split ? own - (chunks * kChunk - pixels) : own;
  }

  // Where a thread's vector of a pixel begins.
  AT_DEVICE int64_t offset(int pixel, int item) const { return (int64_t)(pixel + item * kLanes) * c + channel; }

  // Calls body(Count<items>, first pixel) for the thread's pixels of each chunk of the block: with all items of a whole
  // chunk, and with one after the other of the last chunk. A condition for each item would keep the compiler from
  // issuing all loads before it.
  template <typename Body>
  AT_DEVICE void visit(const Body& body) const {
    if (!has_channels()) return;
    for (int chunk = split; chunk < chunks; chunk += splits) visit_chunk(chunk, body);
  }
  // The same from the block's last chunk to its first.
  template <typename Body>
  AT_DEVICE void visit_reversed(const Body& body) const {
    if (!has_channels()) return;
    int chunk = chunks - 1 - split;
    for (chunk = split + chunk - chunk % splits; chunk >= split; chunk -= splits) visit_chunk(chunk, body);
  }
  template <typename Body>
  AT_DEVICE void visit_chunk(int chunk, const Body& body) const {
    int pixel = chunk * kChunk + lane;
    if ((chunk + 1) * kChunk <= pixels) return body(Count<Items>(), pixel);
    AT_NO_UNROLL for (; pixel < pixels; pixel += kLanes)
      body(Count<1>(), pixel);
  }

  // The reason why blocks cannot share the pixels, or null.
  AT_DEVICE static const char* why_refused(int64_t pixels, int splits) {
    if (pixels >= 1 << 30) return "n h w must be less than 2^30 pixels";
    if (splits < 1 || splits > 4096) return "splits must be 1 to 4096";
    return nullptr;
  }
  AT_DEVICE static int64_t blocks(int c, int splits) { return ceil_div(c, Columns * Vector) * splits; }
};

}  // namespace at
