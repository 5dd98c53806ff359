// Faulty kernels for avg_pool2d, each with another fault, and one correct kernel.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <stdexcept>

#include "cpu/kernel.h"

namespace {

using Problem = at_pool2d;

int64_t outputs(const Problem& a) { return (int64_t)a.n * a.p * a.q * a.c; }

void pool(const Problem& a, void* const* p) {
  const float* x = (const float*)p[0];
  float* y = (float*)p[1];
  for (int64_t o = 0; o < outputs(a); ++o) {
    const int c = o % a.c, j = o / a.c % a.q, i = o / a.c / a.q % a.p, n = o / a.c / a.q / a.p;
    float sum = 0.f;
    for (int r = 0; r < a.r; ++r)
      for (int s = 0; s < a.s; ++s) {
        const int h = i * a.stride_h - a.pad_h + r, w = j * a.stride_w - a.pad_w + s;
        if (h >= 0 && h < a.h && w >= 0 && w < a.w) sum += x[(((int64_t)n * a.h + h) * a.w + w) * a.c + c];
      }
    y[o] = sum / (a.r * a.s);
  }
}

void segfault(const Problem&, void* const*) { *(volatile int*)8 = 1; }
void aborts(const Problem&, void* const*) { abort(); }
void kills(const Problem&, void* const*) { raise(SIGKILL); }
void exits(const Problem&, void* const*) { _exit(3); }
void loops(const Problem&, void* const*) {
  for (volatile int i = 0;; i = i + 1) {
  }
}
void does_nothing(const Problem&, void* const*) {}

void scaled(const Problem& a, void* const* p) {
  pool(a, p);
  for (int64_t o = 0; o < outputs(a); ++o) ((float*)p[1])[o] *= 1.001f;
}

void unpadded_mean(const Problem& a, void* const* p) {  // divides the first row by too few taps
  pool(a, p);
  for (int64_t o = 0; o < (int64_t)a.q * a.c; ++o) ((float*)p[1])[o] *= 1.5f;
}

void one_missing(const Problem& a, void* const* p) {
  float* last = (float*)p[1] + outputs(a) - 1;
  const float before = *last;
  pool(a, p);
  *last = before;
}

void one_wrong(const Problem& a, void* const* p) {
  pool(a, p);
  ((float*)p[1])[outputs(a) / 2] += 0.5f;
}

void infinite(const Problem& a, void* const* p) {
  pool(a, p);
  ((float*)p[1])[1] = 1.f / 0.f;
}

void writes_behind(const Problem& a, void* const* p) {
  pool(a, p);
  ((float*)p[1])[outputs(a)] = 0.f;
}

void writes_before(const Problem& a, void* const* p) {
  pool(a, p);
  ((float*)p[1])[-1] = 0.f;
}

void writes_input(const Problem& a, void* const* p) {
  pool(a, p);
  ((float*)p[0])[3] += 1.f;
}

void writes_far(const Problem& a, void* const* p) {
  pool(a, p);
  ((volatile float*)p[1])[1ll << 40] = 0.f;
}

void throws(const Problem&, void* const*) { throw std::runtime_error("the kernel has given up\nfor good"); }

void made_up(const Problem& a, void* const* p) {  // different wrong results in each call
  static unsigned state = 1;
  for (int64_t o = 0; o < outputs(a); ++o)
    ((float*)p[1])[o] = (state = state * 1664525u + 1013904223u) * 0x1p-31f - 1.f;
}

void jitters(const Problem& a, void* const* p) {  // within tolerance, but different bits in each call
  static int calls = 0;
  pool(a, p);
  float* last = (float*)p[1] + outputs(a) - 1;
  for (int i = calls++ % 7; i > 0; --i) *last = nextafterf(*last, 9.f);
}

void tires(const Problem& a, void* const* p) {  // wrong from the tenth call on
  static int calls = 0;
  pool(a, p);
  if (++calls >= 10) ((float*)p[1])[0] += 0.25f;
}

void strays(const Problem& a, void* const* p) {  // writes its input from the tenth call on
  static int calls = 0;
  pool(a, p);
  if (++calls >= 10) ((float*)p[0])[3] = 5.f;
}

// Keeps the larger of the old and the new output. NaN poison is not visible in the result, because fmaxf drops NaN.
void keeps_largest(const Problem& a, void* const* p) {
  static float before[1 << 16];
  float* y = (float*)p[1];
  for (int64_t o = 0; o < outputs(a); ++o) before[o] = y[o];
  pool(a, p);
  for (int64_t o = 0; o < outputs(a); ++o) y[o] = fmaxf(y[o], before[o]);
}

void leaks(const Problem& a, void* const* p) {
  pool(a, p);
  *(volatile char*)malloc(1 << 14) = 1;
}

void grows_once(const Problem& a, void* const* p) {  // a cache, not a leak
  static int calls = 0;
  static void* volatile kept;
  pool(a, p);
  if (++calls == 2000) kept = malloc(1 << 23);
}

template <int status>
int32_t no_prepare(const void*, void**, int64_t*, char* text, uint64_t size) {
  snprintf(text, size, "c=7 is not what this kernel likes");
  return status;
}

int32_t no_launch(const void*, void* const*, void*, char* text, uint64_t size) {
  snprintf(text, size, "the launch went wrong");
  return AT_FAILED;
}

template <void (*run)(const Problem&, void* const*)>
constexpr at_kernel entry(const char* name) {
  using Entry = at::Entry<Problem, run>;
  return {name, Entry::prepare, Entry::launch, Entry::release};
}

using Good = at::Entry<Problem, pool>;

const at_kernel kernels[] = {
    entry<pool>("good"),
    entry<segfault>("segfault"),
    entry<aborts>("aborts"),
    entry<kills>("kills"),
    entry<exits>("exits"),
    entry<loops>("loops"),
    entry<does_nothing>("does_nothing"),
    entry<scaled>("scaled"),
    entry<unpadded_mean>("unpadded_mean"),
    entry<one_missing>("one_missing"),
    entry<one_wrong>("one_wrong"),
    entry<infinite>("infinite"),
    entry<writes_behind>("writes_behind"),
    entry<writes_before>("writes_before"),
    entry<writes_input>("writes_input"),
    entry<writes_far>("writes_far"),
    entry<throws>("throws"),
    entry<made_up>("made_up"),
    entry<jitters>("jitters"),
    entry<tires>("tires"),
    entry<strays>("strays"),
    entry<keeps_largest>("keeps_largest"),
    entry<leaks>("leaks"),
    entry<grows_once>("grows_once"),
    {"refuses", no_prepare<AT_REFUSED>, Good::launch, Good::release},
    {"fails_to_prepare", no_prepare<AT_FAILED>, Good::launch, Good::release},
    {"fails_to_launch", Good::prepare, no_launch, Good::release},
};
const at_library library = {AT_ABI_VERSION, sizeof kernels / sizeof *kernels, kernels};

}  // namespace

extern "C" const at_library* at_library_get(void) { return &library; }
