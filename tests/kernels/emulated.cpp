// One kernel as a library for tests/support/emulator.py, which defines EMULATED_SYMBOL and EMULATED_PROBLEM, and
// EMULATED_PLAIN for a kernel that is a function without a class `Kernel`.
#include "emulator/launch.h"

#include "cuda/kernel.cuh"

#define at_shared (emu::own().memory)

#include "kernel.cu"

#define JOINED(a, b) a##b
#define NAMED(a, b) JOINED(a, b)
namespace kernel = NAMED(in_, EMULATED_SYMBOL);

#ifdef EMULATED_PLAIN  // the text of the kernel is that of its function, not of a class
struct Emulated {
  using Params = kernel::Params;
  static void run(const Params& params, char*) { kernel::EMULATED_SYMBOL(params); }
};
#else
using Emulated = kernel::Kernel;
#endif

extern "C" int emulate(const EMULATED_PROBLEM& problem, void* const* pointers, int cluster, unsigned seed, char* text,
                       int room, int launches) {
  return emu::run<Emulated>(problem, kernel::NAMED(EMULATED_SYMBOL, _prepare), pointers, cluster, seed, text, room,
                            launches);
}

// Returns the reason why the kernel refuses a problem, or null if it accepts the problem.
extern "C" const char* refusal(const EMULATED_PROBLEM& problem) {
  static at_prepared out;
  std::memset(&out, 0, sizeof out);
  kernel::NAMED(EMULATED_SYMBOL, _prepare)(problem, &out);
  return out.status == AT_REFUSED ? reinterpret_cast<const char*>(out.params) : nullptr;
}

extern "C" int shared_bytes(const EMULATED_PROBLEM& problem) {
  static at_prepared out;
  out.status = AT_FAILED;
  kernel::NAMED(EMULATED_SYMBOL, _prepare)(problem, &out);
  return out.status == AT_OK ? out.shared_bytes : -1;
}
