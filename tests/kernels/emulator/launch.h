// Launches a kernel, cluster by cluster, and defines CUDA's built-in variables and functions.
#pragma once
#include "emulator/mma.h"

namespace emu {

inline void enter() {
  body(own());
  for (auto& group : current->stores)
    if (!group.empty()) fail("a thread has ended while its stores still read shared memory");
  current->ended = true;
  --own().left;
  for (;;) switch_to(current->context, scheduler);
}

// Returns the operations that threads wait for, grouped by warp.
inline std::string waiting() {
  std::map<std::string, int> threads_of;
  for (auto& thread : threads) {
    if (thread->ended) continue;
    const std::string warp = std::to_string(thread->index.x / 32);
    ++threads_of["block " + std::to_string(thread->block->rank) + " warp " + warp + ": " + thread->waits_for];
  }
  std::string text;
  for (auto& [what, count] : threads_of) text += "\n" + std::to_string(count) + " threads of " + what;
  return text;
}

inline void run_cluster(int first, int count, int threads_of_block) {
  blocks.clear(), threads.clear(), transfers.clear();
  std::vector<std::unique_ptr<char, decltype(&std::free)>> memories;
  for (int i = 0; i < count; ++i) {
    memories.emplace_back((char*)std::aligned_alloc(1024, (kSharedBytes + 1023) / 1024 * 1024), &std::free);
    std::memset(memories.back().get(), 0xff, kSharedBytes);  // NaN in every type
    blocks.push_back(std::make_unique<Block>(
        Block{first + i, i, threads_of_block, threads_of_block, memories.back().get(), {}, {}, {}}));
    for (int t = 0; t < threads_of_block; ++t) {
      auto thread = std::make_unique<Thread>();
      thread->block = blocks.back().get();
      thread->index = {t, 0, 0};
      thread->stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
      getcontext(&thread->context.start);
      thread->context.start.uc_stack = {thread->stack.get(), 0, kStackBytes};
      makecontext(&thread->context.start, enter, 0);
      threads.push_back(std::move(thread));
    }
  }
  std::vector<int> order(threads.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = (int)i;
  for (bool left = true; left;) {
    bool moved = false;
    left = false;
    const bool skips = random_order() % 3 == 0;  // in a third of the rounds one warp does not run
    const size_t behind = random_order() % (threads.size() / 32);
    for (int i : order) {
      Thread& thread = *threads[i];
      left |= !thread.ended;
      if (thread.ended || skips && i / 32 == behind || thread.ready && !thread.ready()) continue;
      thread.ready = nullptr;
      current = &thread;
      moved = inside_fiber = true;
      switch_to(scheduler, thread.context);
      inside_fiber = false;
      if (!failure.empty()) fail(failure);
    }
    if (random_order() % 2) std::reverse(order.begin(), order.end());
    if (moved || skips) continue;
    if (!transfers.empty()) {
      // Usually the newest transfer completes first, so that older ones stay in flight for long.
      if (random_order() % 16 == 0) std::swap(transfers[random_order() % transfers.size()], transfers.back());
      const auto work = std::move(transfers.back());
      transfers.pop_back();
      work();
    } else if (left) {
      fail("the kernel hangs:" + waiting());
    }
  }
  if (!transfers.empty()) fail("blocks have ended before what was on its way to them had come");
  for (auto& block : blocks)
    for (auto& [address, barrier] : block->barriers)
      if (barrier.bytes) fail("bytes are awaited that never come");
}

// Prepares a kernel and launches it `launches` times on one workspace, as the engine does. Returns an at_status; on
// failure `text` receives the reason.
template <typename Kernel, typename Problem, typename Prepare>
int run(const Problem& problem, Prepare prepare, void* const* pointers, int cluster, unsigned seed, char* text,
        int room, int launches) {
  static at_prepared out;
  std::memset(&out, 0, sizeof out);
  prepare(problem, &out);
  if (out.status != AT_OK) return out.status;
  std::vector<Map> maps(out.tensor_map_count);
  at_pointers given;
  std::memcpy(&given, pointers, sizeof given);
  std::vector<char> workspace(out.workspace_bytes);
  given.p[AT_WORKSPACE] = workspace.data();
  std::memcpy(out.params + out.pointers_offset, &given, sizeof given);
  for (int i = 0; i < out.tensor_map_count; ++i) {
    maps[i] = {out.tensor_maps[i], (const char*)pointers[out.tensor_maps[i].pointer]};
    const Map* map = &maps[i];
    std::memcpy(out.params + map->wanted.params_offset, &map, sizeof map);
  }
  typename Kernel::Params params;
  std::memcpy((void*)&params, out.params, sizeof params);
  random_order.seed(seed);
  late = seed % 2 == 0;
  failure.clear();
  std::copy(out.grid, out.grid + 2, grid_blocks);
  body = [&](Block& block) { Kernel::run(params, block.memory); };
  try {
    for (int launch = 0; launch < launches; ++launch)
      for (int first = 0; first < out.grid[0] * out.grid[1]; first += cluster) run_cluster(first, cluster, out.threads);
  } catch (const std::exception& error) {
    std::snprintf(text, room, "%s", error.what());
    return AT_FAILED;
  }
  return AT_OK;
}

}  // namespace emu

// ---- CUDA's built-in variables and functions ----

struct EmulatedIndex {
  int x, y;
};
#define threadIdx (emu::current->index)
#define blockIdx (EmulatedIndex{emu::own().index % emu::grid_blocks[0], emu::own().index / emu::grid_blocks[0]})
#define gridDim (EmulatedIndex{emu::grid_blocks[0], emu::grid_blocks[1]})
#define __cvta_shared_to_generic(address) emu::generic(address)
#define __builtin_assume(condition)
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __shfl_sync(mask, value, from) emu::shuffled(mask, value, from)
#define __shfl_xor_sync(mask, value, distance) emu::shuffled(mask, value, emu::lane() ^ (distance))
#define __shfl_down_sync(mask, value, distance) \
  emu::shuffled(mask, value, emu::lane() + (distance) < 32 ? emu::lane() + (distance) : emu::lane())
#define __syncwarp() emu::exchange(0xffffffffu, 0, 0)
#define __syncthreads() emu::sync_of(0, emu::own().threads)
inline int __syncthreads_or(int v) {
  emu::Block& block = emu::own();
  __syncthreads();  // all have read the result before
  block.any = false;
  __syncthreads();
  block.any |= v != 0;
  __syncthreads();
  return block.any;
}
inline void __threadfence() {}
inline int atomicAdd(int* to, int v) {
  const int before = *to;
  *to += v;
  return before;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint64_t)a * b >> 32; }
inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
#define __expf std::exp
inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(uint32_t bits) { return __int_as_float((int)bits); }
inline int __float2int_rn(float v) {
  return v != v ? 0 : v >= 2147483648.f ? INT_MAX : v < -2147483648.f ? INT_MIN : (int)std::lrint(v);
}
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = (uint64_t)high << 32 | low;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) chosen |= (uint32_t)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return chosen;
}
#define __cvta_generic_to_shared(p) emu::shared_address(p)
using std::max;
using std::min;
template <typename T>
T __ldg(const T* p) {
  return *p;
}
