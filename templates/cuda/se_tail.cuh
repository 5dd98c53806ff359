// Squeeze-and-excitation and the rest of a residual block. A thread block processes one image at a time. A thread owns
// 8 neighbouring channels of every `lanes`-th pixel and keeps its first kKeep pixels in registers from the mean to the
// scaling. The order of all additions is fixed, so the same input gives the same bits.
//
// With kCluster > 1, the blocks of a cluster share the pixels of an image: each adds up its own, and reads the sums of
// the others from their shared memory. Unless the weights are in shared memory, each block of a cluster also computes
// a part of the hidden values and of the gates, so that it reads a part of the weights, and reads the other parts from
// the other blocks. Config::hidden_activation and gate_activation are the two activations.
// With Config::kGatesOnly the result is the gates (n, 1, 1, c) themselves.
//
// With kEarly, the weights are copied to shared memory before griddepcontrol_wait(), once for all images of a block,
// and the tensors that the steps read are loaded while the gates are computed.
#pragma once
#include "common/ptx/distributed_shared_memory.cuh"

namespace at {

template <typename Config>
struct SeTail {
  using Element = typename Config::Element;
  static constexpr int kThreads = Config::kThreads, kKeep = Config::kKeep, kVector = 8;
  static constexpr int kCluster = Config::kCluster;
  static constexpr bool kEarly = Config::kEarly, kSplit = kCluster > 1 && !kEarly;
  static constexpr int kAccess = 16;  // bytes of one access
  // Indices of the pointers: Problem.operands() of se_tail.
  enum { kX = 0, kW1 = 1, kB1 = 2, kW2 = 3, kB2 = 4, kY = 5 };
  using Launch = typename Config::Launch;
  using Params = Plain<at_se_tail>;

  // ---- Before the launch ----

  AT_DEVICE static void prepare(const at_se_tail& a, at_prepared* out) {
    if (a.c % kVector) return refused(out, "c must be a multiple of the vector");
    if (a.c / kVector > kThreads) return refused(out, "c exceeds the channels of one block: threads * vector");
    if (kEarly && a.hidden % 4) return refused(out, "hidden must be a multiple of 4 if weights are loaded early");
    const int images = max(a.launch[Launch::kImages], 1);
    if (kCluster > 1 && images > 1) return refused(out, "a cluster takes one image");
    prepared(out, Params{a, {}}, ceil_div(a.n, images) * kCluster, 1, 1, kThreads, Layout(a).bytes, 0);
  }

  // ---- The kernel ----

  AT_DEVICE static void run(const Params& params, char* memory) {
    const at_se_tail& a = params.a;
    void* const* p = params.p.p;
    const Layout at(a);
    const Part part(a);
    Weights weights{(const Element*)p[kW1], (const Element*)p[kW2], (const float*)p[kB1], (const float*)p[kB2],
                    a.hidden};
    if constexpr (kEarly) weights = copied(weights, a, at, memory);
    griddepcontrol_wait();
    for (int image = blockIdx.x / kCluster; image < a.n; image += gridDim.x / kCluster) {
      const int64_t first = ((int64_t)image * a.h * a.w + part.first_pixel) * a.c;
      Kept kept;
      read(kept, a, p, part, first);
      if (image + (int)gridDim.x / kCluster >= a.n) launch_dependents();
      float* gates = excite(kept, a, (const Element*)p[kX] + first, part, weights, at, memory);
      if constexpr (Config::kGatesOnly) put_gates(a, p, image, gates);
      else if (part.active) finish(kept, a, p, part, first, gates);
    }
    if constexpr (kCluster > 1) ptx::cluster_wait_acquire();  // until the others have read this block's sums
  }

 private:
  // Byte offsets in shared memory.
  struct Layout {
    int rows;      // of partial sums, after the lanes of a warp with the same channels are added up
    int w2_pitch;  // elements from row to row of w2; the padding avoids bank conflicts
    int own, mean, hidden, w1, w2, b1, b2, bytes;  // own: this block's sums
    AT_DEVICE explicit Layout(const at_se_tail& a) {
      const int groups = a.c / kVector;
      rows = groups <= 32 && 32 % groups == 0 ? kThreads / 32 : kThreads / groups;
      w2_pitch = a.hidden * (int)sizeof(Element) % kAccess ? a.hidden : a.hidden + kAccess / (int)sizeof(Element);
      own = rows * a.c * 4;
      mean = own + (kCluster > 1 ? a.c * 4 : 0);
      hidden = mean + a.c * 4;
      bytes = w1 = hidden + (a.hidden + 3) / 4 * kAccess;
      w2 = w1 + a.hidden * a.c * (int)sizeof(Element);
      b1 = w2 + a.c * w2_pitch * (int)sizeof(Element);
      b2 = b1 + a.hidden * 4;
      if (kEarly) bytes = b2 + a.c * 4;
    }
  };

  // The pixels of each image that a block owns, and the channels of a thread.
  struct Part {
    int first_pixel, pixels, groups, lanes, lane, channel;
    bool active;
    AT_DEVICE explicit Part(const at_se_tail& a) {
      first_pixel = 0, pixels = a.h * a.w, groups = a.c / kVector, lanes = kThreads / groups;
      if constexpr (kCluster > 1) {
        const int each = ceil_div(pixels, kCluster);
        first_pixel = (int)ptx::rank_in_cluster() * each;
        pixels = max(0, min(each, pixels - first_pixel));
      }
      lane = threadIdx.x / groups, channel = threadIdx.x % groups * kVector;
      active = lane < lanes;
    }
  };

  struct Kept {
    Pack<Element, kVector> x[kKeep];
    typename Config::Steps::Fetched fetched[kEarly ? kKeep : 1];
  };

  struct Weights {
    const Element *w1, *w2;
    const float *b1, *b2;
    int w2_pitch;
  };

  // Starts to copy `rows` rows of `row_bytes` bytes in 16-byte accesses; all addresses must be multiples of 16.
  AT_DEVICE static void copy(char* to, int pitch, const void* from, int rows, int row_bytes) {
    const unsigned place = (unsigned)__cvta_generic_to_shared(to);
    for (int i = threadIdx.x * kAccess; i < rows * row_bytes; i += kThreads * kAccess) {
      const char* part = (const char*)from + i;
      copy_access(place + i / row_bytes * pitch + i % row_bytes, part);
    }
  }

  AT_DEVICE static void copy_access(unsigned to, const void* from) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
  }

  AT_DEVICE static Weights copied(const Weights& from, const at_se_tail& a, const Layout& at, char* memory) {
    const int size = sizeof(Element);
    copy(memory + at.w1, 0, from.w1, 1, a.hidden * a.c * size);
    if (at.w2_pitch == a.hidden) copy(memory + at.w2, 0, from.w2, 1, a.c * a.hidden * size);
    else copy(memory + at.w2, at.w2_pitch * size, from.w2, a.c, a.hidden * size);
    copy(memory + at.b1, 0, from.b1, 1, a.hidden * 4);
    copy(memory + at.b2, 0, from.b2, 1, a.c * 4);
    return {(const Element*)(memory + at.w1), (const Element*)(memory + at.w2), (const float*)(memory + at.b1),
            (const float*)(memory + at.b2), at.w2_pitch};
  }

  // Loads this thread's first kKeep pixels of the image and, with kEarly, the tensors that the steps read there.
  AT_DEVICE static void read(Kept& kept, const at_se_tail& a, void* const* p, const Part& part, int64_t first) {
    AT_UNROLL for (int i = 0; i < kKeep; ++i) {
      const int pixel = part.lane + i * part.lanes;
      if (part.active && pixel < part.pixels)
        kept.x[i].read((const Element*)p[kX] + first + pixel * a.c + part.channel);
    }
    if constexpr (kEarly && !Config::kGatesOnly) {
      AT_UNROLL for (int i = 0; i < kKeep; ++i) {
        const int pixel = part.lane + i * part.lanes;
        if (part.active && pixel < part.pixels)
          Config::Steps::fetch(kept.fetched[i], p, first + (int64_t)pixel * a.c + part.channel);
      }
    }
  }

  // Returns the gates of an image, one float per channel, in shared memory.
  AT_DEVICE static float* excite(const Kept& kept, const at_se_tail& a, const Element* x, const Part& part,
                                 const Weights& weights, const Layout& at, char* memory) {
    float *sums = (float*)memory, *mean = (float*)(memory + at.mean), *hidden = (float*)(memory + at.hidden);
    float sum[kVector] = {};
    AT_UNROLL for (int i = 0; i < kKeep; ++i)
      if (part.active && part.lane + i * part.lanes < part.pixels) {
        AT_UNROLL for (int e = 0; e < kVector; ++e)
          sum[e] += to_float(kept.x[i].elements[e]);
      }
    for (int pixel = part.lane + kKeep * part.lanes; part.active && pixel < part.pixels; pixel += part.lanes) {
      float v[kVector];
      load(v, x + pixel * a.c + part.channel);
      AT_UNROLL for (int e = 0; e < kVector; ++e)
        sum[e] += v[e];
    }

    // mean: partial sums in rows of shared memory; then each thread adds up one column.
    if (at.rows == part.lanes) {
      if (part.active) store(sum, sums + part.lane * a.c + part.channel);
    } else {
      for (int distance = 16; distance >= part.groups; distance /= 2) AT_UNROLL
        for (int e = 0; e < kVector; ++e) sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], distance);
      if ((int)threadIdx.x % 32 < part.groups) store(sum, sums + threadIdx.x / 32 * a.c + part.channel);
    }
    if constexpr (kEarly) wait_for_copies();
    __syncthreads();
    for (int c = threadIdx.x; c < a.c; c += kThreads) {
      float total = 0.f;
      for (int row = 0; row < at.rows; ++row) total += sums[row * a.c + c];
      if constexpr (kCluster > 1) ((float*)(memory + at.own))[c] = total;
      else mean[c] = total / part.pixels;
    }
    if constexpr (kCluster > 1) {
      ptx::cluster_arrive_release();
      ptx::cluster_wait_acquire();
      for (int c = threadIdx.x; c < a.c; c += kThreads) {
        float total = 0.f;
        for (int block = 0; block < kCluster; ++block)
          total += ptx::ld_shared_cluster((uint32_t)__cvta_generic_to_shared(memory + at.own + 4 * c), block);
        mean[c] = total / (a.h * a.w);
      }
      if constexpr (!kSplit) ptx::cluster_arrive_release();
    }
    __syncthreads();

    // hidden = act(w1 mean + b1): one warp per output.
    const Slice outputs(a.hidden, 1), channels(a.c, kVector);
    for (int o = outputs.first + threadIdx.x / 32; o < outputs.end; o += kThreads / 32) {
      const Element* row = weights.w1 + o * a.c;
      float total = 0.f;
      for (int first = (int)threadIdx.x % 32 * kVector; first < a.c; first += kAhead * 32 * kVector) {
        Pack<Element, kVector> w[kAhead];
        AT_UNROLL for (int i = 0; i < kAhead; ++i)
          if (first + i * 32 * kVector < a.c) w[i].read(row + first + i * 32 * kVector);
        AT_UNROLL for (int i = 0; i < kAhead; ++i)
          if (first + i * 32 * kVector < a.c) total = add_products(total, w[i], mean + first + i * 32 * kVector);
      }
      for (int distance = 16; distance; distance /= 2) total += __shfl_xor_sync(0xffffffffu, total, distance);
      if (threadIdx.x % 32 == 0) hidden[o] = Config::hidden_activation(total + weights.b1[o]);
    }
    gather(hidden, a.hidden, outputs);

    // gate(w2 hidden + b2): one thread per output; it overwrites the mean.
    for (int c = channels.first + threadIdx.x; c < channels.end; c += kThreads) {
      const Element* row = weights.w2 + (int64_t)c * weights.w2_pitch;
      const float b2 = weights.b2[c];
      const float total = a.hidden % 8 == 0   ? row_sum<8>(b2, row, hidden, a.hidden)
                          : a.hidden % 4 == 0 ? row_sum<4>(b2, row, hidden, a.hidden)
                          : a.hidden % 2 == 0 ? row_sum<2>(b2, row, hidden, a.hidden)
                                              : row_sum<1>(b2, row, hidden, a.hidden);
      mean[c] = Config::gate_activation(total);
    }
    if constexpr (Config::kGatesOnly) __syncthreads();  // each block stores its part
    else gather(mean, a.c, channels);
    if constexpr (kSplit) ptx::cluster_arrive_release();
    return mean;
  }

  // Accesses that a thread starts before it waits for one, for weights come from far. More would take the registers
  // with which a multiprocessor holds several blocks.
  static constexpr int kAhead = sizeof(Element) == 4 ? 1 : 2;

  template <int N>
  AT_DEVICE static float add_products(float total, const Pack<Element, N>& w, const float* v) {
    AT_UNROLL for (int e = 0; e < N; ++e)
      total += to_float(w.elements[e]) * v[e];
    return total;
  }

  // Returns total + row values, with N elements an access.
  template <int N>
  AT_DEVICE static float row_sum(float total, const Element* row, const float* values, int count) {
    for (int first = 0; first < count; first += kAhead * N) {
      Pack<Element, N> w[kAhead];
      AT_UNROLL for (int i = 0; i < kAhead; ++i)
        if (first + i * N < count) w[i].read(row + first + i * N);
      AT_UNROLL for (int i = 0; i < kAhead; ++i)
        if (first + i * N < count) total = add_products(total, w[i], values + first + i * N);
    }
    return total;
  }

  // The part of `count` values that this block computes: a multiple of `unit`, or what is left of them.
  struct Slice {
    int each, first, end;
    AT_DEVICE Slice(int count, int unit) : each(count), first(0), end(count) {
      if constexpr (kSplit) {
        each = ceil_div(ceil_div(count, unit), kCluster) * unit;
        first = min(count, (int)ptx::rank_in_cluster() * each), end = min(count, first + each);
      }
    }
  };

  // Waits until all values are computed, and copies those of the other blocks.
  AT_DEVICE static void gather(float* values, int count, const Slice& own) {
    if constexpr (kSplit) {
      ptx::cluster_arrive_release();
      ptx::cluster_wait_acquire();
      for (int i = threadIdx.x; i < count; i += kThreads)
        if (i < own.first || i >= own.end)
          values[i] = ptx::ld_shared_cluster((uint32_t)__cvta_generic_to_shared(values + i), i / own.each);
    }
    __syncthreads();
  }

  AT_DEVICE static void wait_for_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  }

  // Applies the steps to the gates of an image and stores them: the first block of a cluster, or each its part.
  AT_DEVICE static void put_gates(const at_se_tail& a, void* const* p, int image, const float* gates) {
    if constexpr (kCluster > 1 && !kSplit)
      if (ptx::rank_in_cluster() != 0) return;
    const Slice own(a.c, kVector);
    for (int channel = own.first + threadIdx.x * kVector; channel < own.end; channel += kThreads * kVector) {
      const int64_t offset = (int64_t)image * a.c + channel;
      typename Config::Steps::Fetched fetched;
      if constexpr (kEarly) Config::Steps::fetch(fetched, p, offset);
      float v[kVector];
      load(v, gates + channel);
      Config::Steps::apply(v, p, a.scalars, channel, offset, fetched);
      store(v, (Element*)p[kY] + offset);
    }
  }

  // Scales, applies the steps and stores. There is no barrier at the end: other threads may start their next image.
  // They overwrite the gates only after the first barrier of excite(), which every thread reaches after it has read its
  // gates.
  AT_DEVICE static void finish(const Kept& kept, const at_se_tail& a, void* const* p, const Part& part, int64_t first,
                               const float* gates) {
    float gate[kVector];
    load(gate, gates + part.channel);
    const auto put = [&](float (&v)[kVector], int pixel, const typename Config::Steps::Fetched& fetched) {
      AT_UNROLL for (int e = 0; e < kVector; ++e)
        v[e] *= gate[e];
      const int64_t offset = first + (int64_t)pixel * a.c + part.channel;
      Config::Steps::apply(v, p, a.scalars, part.channel, offset, fetched);
      store(v, (Element*)p[kY] + offset);
    };
    AT_UNROLL for (int i = 0; i < kKeep; ++i) {
      const int pixel = part.lane + i * part.lanes;
      if (pixel < part.pixels) {
        float v[kVector];
        AT_UNROLL for (int e = 0; e < kVector; ++e)
          v[e] = to_float(kept.x[i].elements[e]);
        put(v, pixel, kept.fetched[kEarly ? i : 0]);
      }
    }
    for (int pixel = part.lane + kKeep * part.lanes; pixel < part.pixels; pixel += part.lanes) {
      float v[kVector];
      const int64_t offset = first + (int64_t)pixel * a.c + part.channel;
      load(v, (const Element*)p[kX] + offset);
      typename Config::Steps::Fetched late;
      if constexpr (kEarly) Config::Steps::fetch(late, p, offset);
      put(v, pixel, late);
    }
  }
};

}  // namespace at
