// Hopper's asynchronous instructions as functions: barriers in shared memory, TMA loads, clusters, wgmma's surroundings.
// Each is one PTX instruction (PTX ISA 8.x, sections "mbarrier", "cp.async.bulk.tensor", "wgmma"), or two.
#pragma once

namespace at {
namespace hopper {

AT_DEVICE uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// ---- Barriers: a phase completes when all arrivals and all announced bytes have come ----

AT_DEVICE void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to TMA and to the cluster.
AT_DEVICE void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

AT_DEVICE void expect_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

AT_DEVICE void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the barrier in the same place of another block of the cluster.
AT_DEVICE void arrive_at(uint32_t barrier, uint32_t block) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(block)
      : "memory");
}

AT_DEVICE void wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\nbra AGAIN;\n"
      "DONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- Tensor maps, as a kernel's prepare asks for them: of a contiguous tensor, dimensions from the innermost ----

template <typename Element, int rank>
AT_DEVICE void describe(at_tensor_map& map, const uint64_t (&sizes)[rank], const uint32_t (&box)[rank],
                        const uint32_t (&element_strides)[rank]) {
  map.rank = rank;
  uint64_t stride = sizeof(Element);
  for (int i = 0; i < rank; ++i) {
    map.sizes[i] = sizes[i], map.box[i] = box[i], map.element_strides[i] = element_strides[i];
    stride *= sizes[i];
    if (i + 1 < rank) map.strides[i] = stride;
  }
}

// Of operands whose rows are so many bytes.
AT_DEVICE constexpr int swizzle_of(int row_bytes) { return row_bytes == 128 ? 3 : row_bytes == 64 ? 2 : 1; }  // CUtensorMapSwizzle

// ---- TMA: loads of a box into shared memory, which count their bytes at a barrier. kShared: the box and the
//      bytes go to the same places of all `blocks` of the cluster, a mask. ----

AT_DEVICE void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

template <bool kShared>
AT_DEVICE void load_3d(uint32_t to, const void* map, uint32_t barrier, int x, int y, int z, uint16_t blocks) {
  if constexpr (kShared)
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
            to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}

template <bool kShared>
AT_DEVICE void load_2d(uint32_t to, const void* map, uint32_t barrier, int x, int y, uint16_t blocks) {
  if constexpr (kShared)
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(blocks)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            to),
        "l"(map), "r"(barrier), "r"(x), "r"(y)
        : "memory");
}

template <bool kShared = false>
AT_DEVICE void load_4d(uint32_t to, const void* map, uint32_t barrier, int x, int y, int z, int w, uint16_t blocks = 0) {
  if constexpr (kShared)
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
            to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}

// Pixels of the im2col matrix from the starting pixel (n, h, w) on, at a filter tap's offset.
template <bool kShared>
AT_DEVICE void load_im2col(uint32_t to, const void* map, uint32_t barrier, int c, int w, int h, int n, uint16_t offset_w,
                           uint16_t offset_h, uint16_t blocks) {
  if constexpr (kShared)
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n), "h"(offset_w), "h"(offset_h), "h"(blocks)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(to),
        "l"(map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n), "h"(offset_w), "h"(offset_h)
        : "memory");
}

// Stores of a box from shared memory, clipped to the tensor. What a thread has stored it commits as a group.
AT_DEVICE void store_2d(const void* map, uint32_t from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from), "r"(x),
               "r"(y)
               : "memory");
}

AT_DEVICE void store_4d(const void* map, uint32_t from, int c, int w, int h, int n) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map), "r"(from),
               "r"(c), "r"(w), "r"(h), "r"(n)
               : "memory");
}

AT_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most `pending` of the groups committed still read shared memory.
template <int pending>
AT_DEVICE void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// Until all that this thread has committed is in memory.
AT_DEVICE void finish_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Makes this thread's writes to shared memory visible to TMA.
AT_DEVICE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

AT_DEVICE void write(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

AT_DEVICE void write(uint32_t address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

AT_DEVICE void write(uint32_t address, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}

// Four matrices of 8 x 8 halves, transposed, each lane naming where a row of 16 bytes goes. A thread has of each the halves
// 2 (lane % 4) and the next of row lane / 4, which are a column's.
AT_DEVICE void store_matrices(uint32_t row, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

AT_DEVICE uint4 read(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}

// One thread of a converged warp; the compiler knows that it is alone.
AT_DEVICE bool elect() {
  uint32_t chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
  return chosen;
}

// Barriers in a row, by a warp. One thread does it: of several each would wait for its turn.
AT_DEVICE void init_barriers(uint32_t first, int count, int arrivals) {
  if (elect())
#pragma unroll 4
    for (int i = 0; i < count; ++i) init_barrier(first + 8 * i, arrivals);
  __syncwarp();
}

// As many threads of a block meet, by whole warps; kName tells such places apart (0 is __syncthreads).
template <int kName, int kThreads>
AT_DEVICE void meet() {
  asm volatile("bar.sync %0, %1;" ::"n"(kName), "n"(kThreads) : "memory");
}

// Those who meet there need not wait for this warp again.
template <int kName, int kThreads>
AT_DEVICE void arrive_at_meeting() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kName), "n"(kThreads) : "memory");
}

// meet() where its name is known only as the kernel runs.
template <int kThreads>
AT_DEVICE void meet_in(int name) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(name), "n"(kThreads) : "memory");
}

// A value that is the same in all threads of a warp, and known to be.
AT_DEVICE int uniform(int value) { return __shfl_sync(0xffffffff, value, 0); }

// Registers of each thread of this warpgroup from now on; who takes waits until others have given.
template <int count>
AT_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
AT_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

// ---- Clusters ----

AT_DEVICE uint32_t rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster. Orders nothing but the threads: a fence for the whole GPU is dear.
AT_DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// All threads of a block, or of all blocks of its cluster.
template <int kCluster>
AT_DEVICE void sync_all() {
  if constexpr (kCluster > 1) sync_cluster();
  else __syncthreads();
}

// The whole cluster in two steps, for threads that need not come together in between. A thread that has ended is not waited for.
AT_DEVICE void arrive_in_cluster() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
AT_DEVICE void wait_for_cluster() { asm volatile("barrier.cluster.wait;" ::: "memory"); }

// Stores into the same place of another block's memory and counts the bytes at its barrier.
AT_DEVICE void send(uint32_t address, uint32_t barrier, uint32_t block, float4 v) {
  asm volatile(
      "{\n.reg .b32 to, at;\nmapa.shared::cluster.u32 to, %0, %2;\nmapa.shared::cluster.u32 at, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, [at];\n}" ::"r"(address),
      "r"(barrier), "r"(block), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}

// Copies what this block has published into another block's memory, by TMA, and counts the bytes at the other's barrier.
AT_DEVICE void send_bytes(uint32_t from, uint32_t to, int bytes, uint32_t barrier, uint32_t block) {
  asm volatile(
      "{\n.reg .b32 place, at;\nmapa.shared::cluster.u32 place, %1, %4;\nmapa.shared::cluster.u32 at, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [place], [%0], %2, [at];\n}" ::"r"(from),
      "r"(to), "r"(bytes), "r"(barrier), "r"(block)
      : "memory");
}

AT_DEVICE float4 load_own(uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address));
  return v;
}

// ---- wgmma: matrix products of a warpgroup on operands in shared memory ----

AT_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
AT_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most `pending` of the groups committed are unfinished.
template <int pending>
AT_DEVICE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// A thread's accumulators of some blocks of 64 rows. Keeps the compiler from moving what touches them across.
template <int kBlocks, int N>
AT_DEVICE void pin(float (&sums)[kBlocks][N]) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block)
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sums[block][i])::"memory");
}

// From accumulators to others. The compiler would move its own moves up among the products.
template <int kBlocks, int N>
AT_DEVICE void move(const float (&from)[kBlocks][N], float (&to)[kBlocks][N]) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block)
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("mov.f32 %0, %1;" : "=f"(to[block][i]) : "f"(from[block][i]) : "memory");
}

// Eight channels of a pixel from or to the accumulators, which are so ordered because the weights are (layout "wgmma",
// autotune/ir/weight_layout.py): row 16 warp + 8 half + lane / 4 of a block, channels 32 columns + 8 (lane % 4) on.
template <int kBlocks, int N>
AT_DEVICE void take(float (&v)[8], const float (&sums)[kBlocks][N], int block, int half, int columns) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    v[2 * j] = sums[block][16 * columns + 4 * j + 2 * half];
    v[2 * j + 1] = sums[block][16 * columns + 4 * j + 2 * half + 1];
  }
}

template <int kBlocks, int N>
AT_DEVICE void put(const float (&v)[8], float (&sums)[kBlocks][N], int block, int half, int columns) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    sums[block][16 * columns + 4 * j + 2 * half] = v[2 * j];
    sums[block][16 * columns + 4 * j + 2 * half + 1] = v[2 * j + 1];
  }
}

// The halves of a matrix descriptor: a K-major operand at a shared address (`low`, to which offsets in units of 16 bytes
// may be added), with rows of `kRowBytes` (32, 64 or 128) swizzled as wide, and `group_bytes` between the starts of two
// neighbouring groups of eight rows (`high`).
AT_DEVICE uint32_t low(uint32_t address) { return (address & 0x3ffff) >> 4 | 1u << 16; }

template <int kRowBytes>
AT_DEVICE uint32_t high(int group_bytes) {
  static_assert(kRowBytes == 32 || kRowBytes == 64 || kRowBytes == 128, "no such swizzle");
  constexpr uint32_t kSwizzle = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;
  return kSwizzle << 30 | group_bytes >> 4;
}

AT_DEVICE uint64_t descriptor(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }

}  // namespace hopper
}  // namespace at
