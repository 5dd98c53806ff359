// Reduces two float values for each channel over all pixels, NHWC. Chunks of pixels run in parallel. Their results are
// combined in double and in order, so the same input gives the same bits on any number of threads.
#pragma once
#include "cpu/channels.h"

namespace at {

constexpr int CHUNK_PIXELS = 256;  // sums of so few floats are exact enough; 64 channels of them fit an L2 cache

AT_INLINE int64_t chunks_of(int64_t pixels) { return (pixels + CHUNK_PIXELS - 1) / CHUNK_PIXELS; }

AT_INLINE int pixels_of_chunk(int64_t pixels, int64_t chunk) {
  const int64_t left = pixels - chunk * CHUNK_PIXELS;
  return left < CHUNK_PIXELS ? (int)left : CHUNK_PIXELS;
}

// Calls body(first, second, channel, pixel, count) for each chunk and block of channels. It computes both results,
// which are 0 at first, for `count` pixels from `pixel` on. They go to `parts`: both rows of the first chunk, then
// those of the next.
template <int Block, typename Body>
AT_INLINE void compute_chunks(int64_t pixels, int c, bool parallel, float* parts, const Body& body) {
  const int64_t chunks = chunks_of(pixels);
#pragma omp parallel for schedule(static) if (parallel)
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    for_channels<Block>(c, [&](auto& first, int channel) AT_INLINED {
      constexpr int count = sizeof first / sizeof(float);
      float second[count] = {};
      for (int i = 0; i < count; ++i) first[i] = 0.f;
      body(first, second, channel, chunk * CHUNK_PIXELS, pixels_of_chunk(pixels, chunk));
      store(first, parts + chunk * 2 * c + channel);
      store(second, parts + (chunk * 2 + 1) * c + channel);
    });
}

// The workspace of a kernel: the results of all chunks.
AT_INLINE int64_t pixel_sums_bytes(int64_t pixels, int c) { return chunks_of(pixels) * 2 * c * sizeof(float); }

// The ABI entry of a kernel with this workspace: over its input, or with `OfOutput` over a convolution's output.
template <typename Problem, void (*run)(const Problem&, void* const*), bool OfOutput = false>
struct PixelSumsEntry : Entry<Problem, run> {
  static int32_t prepare(const void* problem, void** state, int64_t* workspace_bytes, char* text, uint64_t text_bytes) {
    const int32_t status = Entry<Problem, run>::prepare(problem, state, workspace_bytes, text, text_bytes);
    const Problem& a = *static_cast<const Problem*>(problem);
    if constexpr (OfOutput) *workspace_bytes = pixel_sums_bytes((int64_t)a.n * a.p * a.q, a.k);
    else *workspace_bytes = pixel_sums_bytes((int64_t)a.n * a.h * a.w, a.c);
    return status;
  }
};

}  // namespace at
