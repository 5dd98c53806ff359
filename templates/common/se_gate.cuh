// Squeeze-and-excitation in a convolution's epilogue: from sums over the rows of a tile to a gate for each image and
// channel: gate = sigmoid(w2 relu(w1 mean + b1) + b2).
//
// A tile holds whole images. kPeers blocks of a cluster share the channels of an image, kN each, and exchange their
// parts of w1 mean, `hidden` floats per image. All sums have a fixed order.
#pragma once
#include "common/copies.cuh"
#include "common/ptx/cluster.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/shared_memory.cuh"

namespace at {

template <typename Element, int kM, int kN, int kPeers, int kThreads>
struct SeGate {
  static constexpr int kVector = 8;
  static constexpr int kColumn =
      kN + 8;  // elements from one row of w1 to the next; 8 of padding against bank conflicts

  int pixels, hidden;
  int rows;  // whose sum is one partial sum: those that a warp has one after the other, or of an image if it has fewer
  int images;    // images of a tile
  float weight;  // of a pixel in the mean: 1 / pixels

  // run: consecutive rows of a warp that belong to one image, at most.
  AT_DEVICE SeGate(int pixels, int hidden, int run = 16) : pixels(pixels), hidden(hidden) {
    rows = min(pixels, run), images = kM / max(pixels, 1), weight = 1.f / pixels;
  }
  AT_DEVICE bool fits() const {
    return pixels >= 4 && kM % pixels == 0 && pixels % rows == 0 && (16 % rows == 0 || rows % 16 == 0) &&
           hidden % 4 == 0;
  }

  // ---- Shared memory, in bytes from its beginning ----
  AT_DEVICE int mean() const { return kM / rows * kN * 4; }
  AT_DEVICE int parts() const { return mean() + images * kN * 4; }
  AT_DEVICE int vector() const { return parts() + kPeers * images * hidden * 4; }
  AT_DEVICE int w1() const { return vector() + images * hidden * 4; }
  AT_DEVICE int w2() const { return w1() + hidden * kColumn * 2; }
  AT_DEVICE int biases() const { return w2() + kN * (hidden + 8) * 2; }  // b2, then b1
  AT_DEVICE int bytes() const { return biases() + (kN + hidden) * 4; }

  AT_DEVICE static void sync() { ptx::named_barrier_sync<1, kThreads>(); }

  // Starts to copy this block's part of the weights, as thread `thread` of kCopying. excite() waits for its own
  // threads' copies. p: w1 (hidden, k), b1, w2 (k, hidden), b2. The part begins at `channel`.
  template <int kCopying = kThreads>
  AT_DEVICE void load_weights(char* memory, void* const* p, int channel, int k, int thread) const {
    const uint32_t to = ptx::cast_smem_ptr_to_uint(memory);
    const Element *first = (const Element*)p[0] + channel, *second = (const Element*)p[2] + (int64_t)channel * hidden;
    const float *b1 = (const float*)p[1], *b2 = (const float*)p[3] + channel;
    const int rest = min(k - channel, kN);  // channels that exist; a multiple of 8
    AT_NO_UNROLL for (int i = thread; i < hidden * (kN / kVector); i += kCopying) {
      const int o = i / (kN / kVector), c = i % (kN / kVector) * kVector;
      const uint32_t place = to + w1() + (o * kColumn + c) * 2;
      if (c < rest) copy_async<16>(place, first + (int64_t)o * k + c);
      else ptx::st_shared(place, make_uint4(0, 0, 0, 0));
    }
    AT_NO_UNROLL for (int c = thread; c < rest; c += kCopying) AT_NO_UNROLL
      for (int o = 0; o < hidden; o += 4)
        copy_async<8>(to + w2() + (c * (hidden + 8) + o) * 2, second + c * hidden + o);
    AT_NO_UNROLL for (int i = thread; i < rest / 4; i += kCopying)
      copy_async<16>(to + biases() + 16 * i, b2 + 4 * i);
    AT_NO_UNROLL for (int i = thread; i < hidden / 4; i += kCopying)
      copy_async<16>(to + biases() + 4 * kN + 16 * i, b1 + 4 * i);
  }

  // Stores the sums over a warp's 16 rows, or over each `rows` of them, for excite(). v[half]: eight channels from
  // `column` on, of row 8 half + lane / 4. slab: the index of the 16 rows in the tile.
  AT_DEVICE void collect(float (&v)[2][kVector], char* memory, int slab, int column) const {
    const int lane = threadIdx.x % 32;
    float* to = (float*)memory + column;
    if (rows >= 16) {
      AT_UNROLL for (int e = 0; e < kVector; ++e)
        v[0][e] += v[1][e];
      leave_sums(v[0], 8, to + slab * kN);
    } else {
      AT_UNROLL for (int half = 0; half < 2; ++half)
        leave_sums(v[half], rows, to + (slab * (16 / rows) + (8 * half + lane / 4) / rows) * kN);
    }
  }

  // Adds up `rows` neighbouring rows, 4 or 8, which are in every fourth lane. With 8 rows each thread gets one of the
  // eight sums, which takes a third of the shuffles.
  AT_DEVICE static void leave_sums(float (&v)[kVector], int rows, float* to) {
    const int row = threadIdx.x % 32 / 4;
    if (rows != 8) {
      for (int distance = 4; distance < 4 * rows; distance *= 2) AT_UNROLL
        for (int e = 0; e < kVector; ++e) v[e] += __shfl_xor_sync(0xffffffffu, v[e], distance);
      if (row % rows == 0) store(v, to);
      return;
    }
    AT_UNROLL for (int half = kVector / 2; half; half /= 2) {
      const bool upper = row & half;  // a lane that keeps the upper half sends the lower half
      AT_UNROLL for (int e = 0; e < half; ++e) {
        const float other = __shfl_xor_sync(0xffffffffu, upper ? v[e] : v[e + half], 4 * half);
        v[e] = (upper ? v[e + half] : v[e]) + other;
      }
    }
    to[row] = v[0];
  }

  // excite() for a tile that is one image with all its channels: a warp computes some hidden values, a thread one
  // channel.
  AT_DEVICE void excite_image(char* memory) const {
    constexpr int kOwn = kN / 32, kWarps = kThreads / 32;  // channels of a lane; warps
    static_assert(kPeers == 1 && kThreads >= kN, "no such channels");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = threadIdx.x;
    const float *sums = (const float*)memory, *b2 = (const float*)(memory + biases()), *b1 = b2 + kN;
    float *means = (float*)(memory + mean()), *hiddens = (float*)(memory + vector());
    wait_for_all_copies();
    sync();
    if (c < kN) {
      float total = 0.f;
#pragma unroll 4
      for (int j = 0; j < pixels / rows; ++j) total += sums[j * kN + c];
      means[c] = total * weight;
    }
    sync();
    AT_NO_UNROLL for (int o = warp; o < hidden; o += kWarps) {
      float w[kOwn], m[kOwn], value = 0.f;
      load(w, (const Element*)(memory + w1()) + o * kColumn + lane * kOwn);
      load(m, means + lane * kOwn);
      AT_UNROLL for (int e = 0; e < kOwn; ++e)
        value += w[e] * m[e];
      AT_UNROLL for (int distance = 16; distance; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
      if (lane == 0) hiddens[o] = at_least_zero(value + b1[o]);
    }
    sync();
    if (c < kN) {
      float gate = b2[c];
#pragma unroll 2
      for (int o = 0; o < hidden; o += 4) {
        float w[4], h[4];
        load(w, (const Element*)(memory + w2()) + c * (hidden + 8) + o);
        load(h, hiddens + o);
        AT_UNROLL for (int i = 0; i < 4; ++i)
          gate += w[i] * h[i];
      }
      means[c] = logistic(gate);
    }
    sync();
  }

  // Turns partial sums into gates (images, kN), in the place of the means. me: this block's index among its peers.
  // rank_of: maps a peer to its block of the cluster. barrier: an mbarrier that counts the peers' bytes.
  template <typename RankOf>
  AT_DEVICE void excite(char* memory, int channel, int k, int me, uint32_t barrier, RankOf rank_of) const {
    const int thread = threadIdx.x;
    const float* sums = (const float*)memory;
    float* means = (float*)(memory + mean());
    float* own = (float*)(memory + parts()) + me * images * hidden;
    if (kPeers > 1 && thread == 0) ptx::mbarrier_arrive_expect_tx(barrier, (kPeers - 1) * images * hidden * 4);
    wait_for_all_copies();
    sync();
    const int each = pixels / rows;
    AT_NO_UNROLL for (int i = thread; i < images * kN; i += kThreads) {
      const int image = i / kN, c = i % kN;
      float total = 0.f;
#pragma unroll 4
      for (int j = 0; j < each; ++j) total += sums[(image * each + j) * kN + c];
      means[i] = total * weight;
    }
    sync();
    const int pairs = images * hidden;
    if (pairs >= kThreads) multiply_first<1>(memory, own, pairs);
    else multiply_first<8>(memory, own, pairs);
    sync();
    if constexpr (kPeers > 1) {
      const uint32_t place = ptx::cast_smem_ptr_to_uint(own);
      for (int i = thread; i < pairs / 4; i += kThreads) {
        const float4 part = ((const float4*)own)[i];
        AT_UNROLL for (int peer = 0; peer < kPeers; ++peer)
          if (peer != me) ptx::st_async(place + 16 * i, barrier, rank_of(peer), part);
      }
      ptx::mbarrier_wait(barrier, 0);
    }
    float* hiddens = (float*)(memory + vector());
    AT_NO_UNROLL for (int i = thread; i < pairs; i += kThreads) {
      float total = ((const float*)(memory + biases()))[kN + i - image_of(i) * hidden];
      AT_UNROLL for (int peer = 0; peer < kPeers; ++peer)
        total += ((const float*)(memory + parts()))[peer * pairs + i];
      hiddens[i] = at_least_zero(total);
    }
    sync();
    const Element* weights = (const Element*)(memory + w2());
    AT_NO_UNROLL for (int i = thread; i < images * kN; i += kThreads) {
      const int image = i / kN, c = i % kN;
      if (channel + c >= k) continue;
      float total = ((const float*)(memory + biases()))[c];
      for (int o = 0; o < hidden; o += 4) {
        float w[4];
        load(w, weights + c * (hidden + 8) + o);
        const float4 h = *(const float4*)(hiddens + image * hidden + o);
        total += w[0] * h.x + w[1] * h.y + w[2] * h.z + w[3] * h.w;
      }
      means[i] = logistic(total);
    }
    sync();
  }

 private:
  // The image of an (image, hidden channel) pair. Most tiles are one image, and a division is slow.
  AT_DEVICE int image_of(int pair) const { return images > 1 ? pair / hidden : 0; }

  // This block's share of w1 mean. kLanes threads compute each value.
  template <int kLanes>
  AT_DEVICE void multiply_first(const char* memory, float* own, int pairs) const {
    const float* means = (const float*)(memory + mean());
    const Element* weights = (const Element*)(memory + w1());
    AT_NO_UNROLL for (int i = threadIdx.x / kLanes; i < pairs; i += kThreads / kLanes) {
      const int image = image_of(i), o = i - image * hidden;
      float total = 0.f;
      for (int c = threadIdx.x % kLanes * kVector; c < kN; c += kLanes * kVector) {
        float w[kVector], m[kVector];
        load(w, weights + o * kColumn + c);
        load(m, means + image * kN + c);
        AT_UNROLL for (int e = 0; e < kVector; ++e)
          total += w[e] * m[e];
      }
      const uint32_t group = kLanes == 32 ? 0xffffffffu : ((1u << kLanes) - 1) << (threadIdx.x & 31 & ~(kLanes - 1));
      AT_UNROLL for (int distance = kLanes / 2; distance; distance /= 2)
        total += __shfl_xor_sync(group, total, distance);
      if (threadIdx.x % kLanes == 0) own[i] = total;
    }
  }
};

}  // namespace at
