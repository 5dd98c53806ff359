// Runs the source of a Hopper kernel on a CPU, to test its arithmetic and its synchronization. Every CUDA thread of a
// cluster is a fiber. Asynchronous wgmma runs as late as its waits allow; TMA and cp.async also, or at once if the seed
// is odd. The seed determines the order of the fibers, so a run can be repeated. tests/support/emulator.py substitutes
// these functions for PTX.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <climits>
#include <cmath>
#include <csetjmp>
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

// A stack and what runs on it. swapcontext() asks the kernel for the signal mask at each switch; _longjmp() does not.
struct Context {
  ucontext_t start;
  jmp_buf at;
  bool started = false;
};

inline void switch_to(Context& from, Context& to) {
  from.started = true;
  if (_setjmp(from.at)) return;
  if (to.started) _longjmp(to.at, 1);
  setcontext(&to.start);
}

constexpr int kStackBytes = 256 << 10, kSharedBytes = 232448 + 1024;

struct Barrier {
  int arrivals, pending, bytes = 0, phase = 0;
  void settle() {
    if (pending == 0 && bytes == 0) ++phase, pending = arrivals;
  }
};

struct Collective {  // some lanes of a warp
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
  bool any = false;  // of __syncthreads_or()
};

struct Thread {
  Context context;
  std::unique_ptr<char[]> stack;
  Block* block;
  struct {
    int x, y, z;
  } index;
  std::function<bool()> ready;  // empty: ready at once
  std::string waits_for;
  std::deque<std::vector<std::function<void()>>> groups;  // of wgmma: committed and not complete
  std::vector<std::function<void()>> open;
  int committed = 0, cluster_turn = 0;
  std::deque<std::vector<std::function<void()>>> stores;  // bulk store groups that may not have read shared memory yet
  std::vector<std::function<void()>> open_stores;
  std::deque<std::vector<std::function<void()>>> copies;  // of cp.async, by group
  std::vector<std::function<void()>> open_copies;
  bool ended = false;
};

inline std::vector<std::unique_ptr<Block>> blocks;  // of the current cluster
inline std::vector<std::unique_ptr<Thread>> threads;
inline std::vector<std::function<void()>> transfers;  // of TMA, in flight
inline Thread* current;
inline Context scheduler;
inline bool inside_fiber, late;  // late: transfers complete only if no fiber can run; otherwise at once
inline std::function<void(Block&)> body;
inline int grid_blocks[2];
inline std::mt19937 random_order;

// Ends the run. The scheduler throws the exception, because an exception cannot leave a fiber.
inline std::string failure;
inline void fail(const std::string& why) {
  if (failure.empty()) failure = why;
  for (;; switch_to(current->context, scheduler))
    if (!inside_fiber) throw std::runtime_error(failure);
}

inline void yield_until(std::function<bool()> ready, const std::string& what) {
  if (ready()) return;
  current->ready = std::move(ready);
  current->waits_for = what;
  switch_to(current->context, scheduler);
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
inline float load_from(uint32_t address, uint32_t block) {
  if (address % 4 || address >= kSharedBytes) fail("the shared address " + std::to_string(address));
  if (blocks.at(block)->left == 0) fail("a block has ended before another has read its shared memory");
  float v;
  std::memcpy(&v, blocks.at(block)->memory + address, sizeof v);
  return v;
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

// ---- Collective operations ----

inline void sync_of(int name, int count) {
  Named& named = own().named[name];
  const int64_t turn = ++named.turn[current->index.x];
  ++named.arrived;
  yield_until([&named, turn, count] { return named.arrived >= turn * count; }, "bar.sync " + std::to_string(name));
}
inline void arrive_at_name(int name) {
  Named& named = own().named[name];
  ++named.turn[current->index.x], ++named.arrived;
}
inline void arrive_in_cluster() { ++current->cluster_turn; }
inline void wait_for_cluster() {
  const int turn = current->cluster_turn;
  const auto there = [turn](const auto& thread) { return thread->ended || thread->cluster_turn >= turn; };
  yield_until([there] { return std::all_of(threads.begin(), threads.end(), there); }, "the cluster");
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

}  // namespace emu
