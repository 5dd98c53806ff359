// Runs a Hopper kernel's own text on a CPU, to test its arithmetic and its hand-shakes: every CUDA thread of a cluster is a
// fiber, and what the hardware does by itself happens as late as it may (wgmma), or at once (TMA, if the seed is odd).
// Fibers run in an order given by the seed, so a run can be repeated. tests/emulator.py puts these functions in the place of PTX.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <ucontext.h>

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi.h"

namespace emu {

constexpr int kStackBytes = 256 << 10, kSharedBytes = 232448 + 1024;

struct Barrier {
  int arrivals, pending, bytes = 0, phase = 0;
  void settle() {
    if (pending == 0 && bytes == 0) ++phase, pending = arrivals;
  }
};

struct Collective {  // of some lanes of a warp
  int64_t arrived[2] = {0, 0};
  int64_t turn[32] = {};
  uint64_t values[2][32];
};

struct Named {
  int64_t arrived = 0;
  int64_t turn[1024] = {};
};

struct Block {
  int index, rank, threads, left;
  char* memory;
  std::map<uint32_t, Barrier> barriers;
  std::map<std::pair<int, uint32_t>, Collective> collectives;
  std::map<int, Named> named;
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Block* block;
  struct { int x, y, z; } index;
  std::function<bool()> ready;  // empty: at once
  std::string waits_for;
  std::deque<std::vector<std::function<void()>>> groups;  // of wgmma, committed and not over
  std::vector<std::function<void()>> open;
  int committed = 0;
  std::deque<std::vector<std::function<void()>>> stores;  // groups whose shared memory may not have been read
  std::vector<std::function<void()>> open_stores;
  bool ended = false;
};

inline std::vector<std::unique_ptr<Block>> blocks;  // of the cluster that runs
inline std::vector<std::unique_ptr<Thread>> threads;
inline std::vector<std::function<void()>> transfers;  // of TMA, on their way
inline Thread* current;
inline ucontext_t scheduler;
inline bool inside_fiber, late;  // late: transfers come when nothing else happens any more, else at once
inline std::function<void(Block&)> body;
inline int cluster_arrived, grid_blocks;
inline std::map<Thread*, int> cluster_turn;
inline std::mt19937 random_order;

// Ends the run: thrown by the scheduler, because an exception cannot leave a fiber.
inline std::string failure;
inline void fail(const std::string& why) {
  if (failure.empty()) failure = why;
  for (;; swapcontext(&current->context, &scheduler))
    if (!inside_fiber) throw std::runtime_error(failure);
}

inline void yield_until(std::function<bool()> ready, const std::string& what) {
  if (ready()) return;
  current->ready = std::move(ready);
  current->waits_for = what;
  swapcontext(&current->context, &scheduler);
}

inline void transfer(std::function<void()> work) {
  if (late) transfers.push_back(std::move(work));
  else work();
}

inline Block& own() { return *current->block; }
inline int lane() { return current->index.x % 32; }
inline void* generic(uint32_t address) {
  if (address >= kSharedBytes) fail("the shared address " + std::to_string(address));
  return own().memory + address;
}
inline uint32_t shared_address(const void* p) { return (uint32_t)((const char*)p - own().memory); }

// ---- Barriers ----

inline Barrier& barrier_of(Block& block, uint32_t address) {
  if (block.left == 0) fail("a block has ended before all had come that is sent to it");
  auto found = block.barriers.find(address);
  if (found == block.barriers.end() || address % 8) fail("no barrier at " + std::to_string(address));
  return found->second;
}
inline void init_barrier(uint32_t address, int arrivals) {
  if (own().barriers.count(address)) fail("two barriers at " + std::to_string(address));
  own().barriers[address] = {arrivals, arrivals};
}
inline void arrive_in(Block& block, uint32_t address, int bytes) {
  Barrier& barrier = barrier_of(block, address);
  if (--barrier.pending < 0) fail("too many arrivals at " + std::to_string(address));
  barrier.bytes += bytes;
  barrier.settle();
}
inline void come(Block& block, uint32_t address, int bytes) {
  Barrier& barrier = barrier_of(block, address);
  barrier.bytes -= bytes;
  barrier.settle();
}
inline void expect_bytes(uint32_t address, int bytes) { arrive_in(own(), address, bytes); }
inline void arrive(uint32_t address) { arrive_in(own(), address, 0); }
inline void arrive_at(uint32_t address, uint32_t block) { arrive_in(*blocks.at(block), address, 0); }
inline void wait(uint32_t address, uint32_t parity) {
  Barrier& barrier = barrier_of(own(), address);
  yield_until([&barrier, parity] { return (barrier.phase & 1) != (int)parity; }, "barrier " + std::to_string(address));
}

// ---- Threads together ----

inline void sync_of(int name, int count) {
  Named& named = own().named[name];
  const int64_t turn = ++named.turn[current->index.x];
  ++named.arrived;
  yield_until([&named, turn, count] { return named.arrived >= turn * count; }, "bar.sync " + std::to_string(name));
}
inline void sync_cluster(int threads_of_block) {
  const int turn = ++cluster_turn[current], all = threads_of_block * (int)blocks.size();
  ++cluster_arrived;
  yield_until([turn, all] { return cluster_arrived >= turn * all; }, "the cluster");
}
inline uint64_t exchange(uint32_t mask, uint64_t value, int from) {
  Collective& all = own().collectives[{current->index.x / 32, mask}];
  const int64_t turn = all.turn[lane()]++;
  const int side = turn % 2, lanes = (int)std::bitset<32>(mask).count();
  all.values[side][lane()] = value;
  ++all.arrived[side];
  yield_until([&all, side, turn, lanes] { return all.arrived[side] >= (turn / 2 + 1) * lanes; }, "a shuffle");
  return all.values[side][from];
}
template <typename T>
T shuffled(uint32_t mask, T value, int from) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(mask, bits, from);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// ---- TMA ----

struct Map {
  at_tensor_map wanted;
  const char* base;
};

inline uint32_t swizzled(uint32_t address, int row_bytes) {
  const int bits = row_bytes == 128 ? 7 : row_bytes == 64 ? 3 : 1;
  return address ^ ((address >> 7 & bits) << 4);
}

inline void store_box(Block& block, uint32_t to, const Map& map, const std::vector<int>& from) {
  const at_tensor_map& m = map.wanted;
  const int row_bytes = m.swizzle == 3 ? 128 : m.swizzle == 2 ? 64 : 32;
  std::vector<int> count, at(m.rank, 0);
  for (int i = 0; i < m.rank; ++i) count.push_back((m.box[i] + m.element_strides[i] - 1) / m.element_strides[i]);
  for (uint32_t offset = 0;; offset += 2) {
    bool inside = true;
    int64_t place = 0;
    for (int i = 0; i < m.rank; ++i) {
      const int64_t x = from[i] + at[i] * (int64_t)m.element_strides[i];
      inside &= x >= 0 && x < (int64_t)m.sizes[i];
      place += x * (i ? (int64_t)m.strides[i - 1] : 2);
    }
    uint16_t value = 0;
    if (inside) std::memcpy(&value, map.base + place, 2);
    std::memcpy(block.memory + swizzled(to + offset, row_bytes), &value, 2);
    int i = 0;
    while (i < m.rank && ++at[i] == count[i]) at[i++] = 0;
    if (i == m.rank) return;
  }
}

inline void load(uint32_t to, const void* params_map, uint32_t barrier, std::vector<int> from, uint32_t to_blocks) {
  const Map* map;
  std::memcpy(&map, params_map, sizeof map);
  int bytes = 2;
  for (int i = 0; i < map->wanted.rank; ++i)
    bytes *= (map->wanted.box[i] + map->wanted.element_strides[i] - 1) / map->wanted.element_strides[i];
  if (to % 128) fail("TMA to " + std::to_string(to));
  for (auto& block : blocks) {
    if (to_blocks ? !(to_blocks >> block->rank & 1) : block.get() != &own()) continue;
    Block* target = block.get();
    transfer([=] { store_box(*target, to, *map, from), come(*target, barrier, bytes); });
  }
}

// Pixels of the im2col matrix: starting pixels run through the box between the corners, an image after the other.
inline void load_im2col(uint32_t to, const void* params_map, uint32_t barrier, std::vector<int> from, int offset_w, int offset_h,
                        uint32_t to_blocks) {
  const Map* map;
  std::memcpy(&map, params_map, sizeof map);
  const at_tensor_map m = map->wanted;
  const char* base = map->base;
  if (to % 128) fail("TMA to " + std::to_string(to));
  for (auto& block : blocks) {
    if (to_blocks ? !(to_blocks >> block->rank & 1) : block.get() != &own()) continue;
    Block* target = block.get();
    transfer([=] {
      const int row_bytes = m.swizzle == 3 ? 128 : m.swizzle == 2 ? 64 : 32;
      int w = from[1], h = from[2], n = from[3];
      for (int pixel = 0; pixel < m.pixels; ++pixel) {
        const int at[3] = {w + offset_w, h + offset_h, n};
        bool inside = true;
        int64_t place = 0;
        for (int i = 0; i < 3; ++i)
          inside &= at[i] >= 0 && at[i] < (int64_t)m.sizes[i + 1], place += at[i] * (int64_t)m.strides[i];
        for (uint32_t c = 0; c < m.box[0]; ++c) {
          uint16_t value = 0;
          if (inside && from[0] + c < m.sizes[0]) std::memcpy(&value, base + place + 2 * (from[0] + c), 2);
          std::memcpy(target->memory + swizzled(to + pixel * row_bytes + 2 * c, row_bytes), &value, 2);
        }
        if ((w += m.element_strides[1]) < (int64_t)m.sizes[1] + m.upper[0]) continue;
        w = m.lower[0];
        if ((h += m.element_strides[2]) < (int64_t)m.sizes[2] + m.upper[1]) continue;
        h = m.lower[1], ++n;
      }
      come(*target, barrier, m.pixels * row_bytes);
    });
  }
}

// A store reads shared memory at once or, where it may be late, when its thread waits for that.
inline void store(const void* params_map, uint32_t from, std::vector<int> to) {
  const Map* map;
  std::memcpy(&map, params_map, sizeof map);
  Block* block = &own();
  auto work = [=] {
    const at_tensor_map& m = map->wanted;
    const int row_bytes = m.swizzle == 3 ? 128 : m.swizzle == 2 ? 64 : 32;
    std::vector<int> at(m.rank, 0);
    for (uint32_t offset = 0;; offset += 2) {
      bool inside = true;
      int64_t place = 0;
      for (int i = 0; i < m.rank; ++i) {
        const int64_t x = to[i] + at[i];
        inside &= x >= 0 && x < (int64_t)m.sizes[i];
        place += x * (i ? (int64_t)m.strides[i - 1] : 2);
      }
      if (inside) std::memcpy((char*)map->base + place, block->memory + swizzled(from + offset, row_bytes), 2);
      int i = 0;
      while (i < m.rank && ++at[i] == (int)m.box[i]) at[i++] = 0;
      if (i == m.rank) return;
    }
  };
  if (late) current->open_stores.push_back(work);
  else work();
}
inline void commit_stores() { current->stores.push_back(std::move(current->open_stores)), current->open_stores.clear(); }
inline void wait_for_stores(int pending) {
  for (; (int)current->stores.size() > pending; current->stores.pop_front())
    for (auto& one : current->stores.front()) one();
}

inline void send_bytes(uint32_t address, int bytes, uint32_t barrier, uint32_t to) {
  Block *source = &own(), *target = blocks.at(to).get();
  transfer([=] {
    std::memcpy(target->memory + address, source->memory + address, bytes);
    come(*target, barrier, bytes);
  });
}

template <typename Vector>
void send(uint32_t address, uint32_t barrier, uint32_t to, Vector v) {
  Block* target = blocks.at(to).get();
  transfer([=] {
    std::memcpy(target->memory + address, &v, sizeof v);
    come(*target, barrier, sizeof v);
  });
}

// ---- wgmma: a group of products is computed when the first thread waits for it, from what lies there then. It is the
//      whole warpgroup's: it begins when the last warp has issued it, and is over for all at once. ----

template <typename Element>
float value_at(const char* memory, uint32_t low, uint32_t high, int row, int k) {
  const int mode = high >> 30, row_bytes = mode == 1 ? 128 : mode == 2 ? 64 : 32;
  const uint32_t start = (low & 0x3fff) << 4, group = (high & 0x3fff) << 4;
  const uint32_t address = swizzled(start + row / 8 * group + row % 8 * row_bytes + 2 * k, row_bytes);
  Element v;
  std::memcpy((void*)&v, memory + address, sizeof v);
  return (float)v;
}

template <typename Element, int N>
void multiply(float (&d)[N], uint64_t a, uint64_t b, int accumulate) {
  float* sums = d;
  const char* memory = own().memory;
  const int thread = current->index.x % 128;
  current->open.push_back([=] {
    float left[2][16];
    for (int half = 0; half < 2; ++half)
      for (int k = 0; k < 16; ++k)
        left[half][k] = value_at<Element>(memory, (uint32_t)a, a >> 32, thread / 32 * 16 + 8 * half + thread % 32 / 4, k);
    for (int j = 0; j < N; j += 4)
      for (int e = 0; e < 2; ++e) {
        float right[16];
        for (int k = 0; k < 16; ++k)
          right[k] = value_at<Element>(memory, (uint32_t)b, b >> 32, 2 * j + thread % 4 * 2 + e, k);
        for (int half = 0; half < 2; ++half) {
          float& sum = sums[j + 2 * half + e];
          if (!accumulate) sum = 0.f;
          for (int k = 0; k < 16; ++k) sum += left[half][k] * right[k];
        }
      }
  });
}
inline void commit_products() {
  current->groups.push_back(std::move(current->open)), current->open.clear();
  ++current->committed;
}
inline void wait_for_products(int pending) {
  const int target = current->committed - pending, first = current->index.x / 128 * 128, from = own().rank * own().threads + first;
  yield_until(
      [=] {
        for (int i = from; i < from + 128; ++i)
          if (threads[i]->committed < target) return false;
        return true;
      },
      "products");
  for (int i = from; i < from + 128; ++i) {
    Thread& thread = *threads[i];
    for (; thread.committed - (int)thread.groups.size() < target; thread.groups.pop_front())
      for (auto& product : thread.groups.front()) product();
  }
}

// ---- The launch ----

inline void enter() {
  body(own());
  for (auto& group : current->stores)
    if (!group.empty()) fail("a thread has ended while its stores still read shared memory");
  current->ended = true;
  --own().left;
  for (;;) swapcontext(&current->context, &scheduler);
}

// What the threads wait for, warp by warp.
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
  blocks.clear(), threads.clear(), transfers.clear(), cluster_turn.clear();
  cluster_arrived = 0;
  std::vector<std::unique_ptr<char, decltype(&std::free)>> memories;
  for (int i = 0; i < count; ++i) {
    memories.emplace_back((char*)std::aligned_alloc(1024, (kSharedBytes + 1023) / 1024 * 1024), &std::free);
    std::memset(memories.back().get(), 0xff, kSharedBytes);  // NaN in every type
    blocks.push_back(std::make_unique<Block>(Block{first + i, i, threads_of_block, threads_of_block, memories.back().get(), {}, {}, {}}));
    for (int t = 0; t < threads_of_block; ++t) {
      auto thread = std::make_unique<Thread>();
      thread->block = blocks.back().get();
      thread->index = {t, 0, 0};
      thread->stack = std::make_unique<char[]>(kStackBytes);
      getcontext(&thread->context);
      thread->context.uc_stack = {thread->stack.get(), 0, kStackBytes};
      makecontext(&thread->context, enter, 0);
      threads.push_back(std::move(thread));
    }
  }
  std::vector<int> order(threads.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = (int)i;
  for (bool left = true; left;) {
    bool moved = false;
    left = false;
    const bool skips = random_order() % 3 == 0;  // now and then the threads of a whole warp stay behind
    const size_t behind = random_order() % (threads.size() / 32);
    for (int i : order) {
      Thread& thread = *threads[i];
      left |= !thread.ended;
      if (thread.ended || skips && i / 32 == behind || thread.ready && !thread.ready()) continue;
      thread.ready = nullptr;
      current = &thread;
      moved = inside_fiber = true;
      swapcontext(&scheduler, &thread.context);
      inside_fiber = false;
      if (!failure.empty()) fail(failure);
    }
    if (random_order() % 2) std::reverse(order.begin(), order.end());
    if (moved || skips) continue;
    if (!transfers.empty()) {
      // Mostly the newest: the others are overtaken for long.
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

// Prepares and runs a kernel as the engine would. Returns an at_status; text says what went wrong.
template <typename Kernel, typename Problem, typename Prepare>
int run(const Problem& problem, Prepare prepare, void* const* pointers, int cluster, unsigned seed, char* text, int room) {
  static at_prepared out;
  std::memset(&out, 0, sizeof out);
  prepare(problem, &out);
  if (out.status != AT_OK) return out.status;
  std::vector<Map> maps(out.tensor_map_count);
  std::memcpy(out.params + out.pointers_offset, pointers, sizeof(at_pointers));
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
  grid_blocks = out.grid[0];
  body = [&](Block& block) { Kernel::run(params, block.memory); };
  try {
    for (int first = 0; first < out.grid[0]; first += cluster) run_cluster(first, cluster, out.threads);
  } catch (const std::exception& error) {
    std::snprintf(text, room, "%s", error.what());
    return AT_FAILED;
  }
  return AT_OK;
}

}  // namespace emu

// ---- What CUDA gives a thread ----

struct EmulatedIndex { int x; };
#define threadIdx (emu::current->index)
#define blockIdx (EmulatedIndex{emu::own().index})
#define gridDim (EmulatedIndex{emu::grid_blocks})
#define __cvta_shared_to_generic(address) emu::generic(address)
#define __builtin_assume(condition)
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __shfl_sync(mask, value, from) emu::shuffled(mask, value, from)
#define __shfl_xor_sync(mask, value, distance) emu::shuffled(mask, value, emu::lane() ^ (distance))
#define __syncwarp() emu::exchange(0xffffffffu, 0, 0)
#define __syncthreads() emu::sync_of(0, emu::own().threads)
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint64_t)a * b >> 32; }
#define __expf std::exp
#define __float2int_rn (int)std::lrint
#define __cvta_generic_to_shared(p) emu::shared_address(p)
using std::max;
using std::min;
template <typename T>
T __ldg(const T* p) { return *p; }
