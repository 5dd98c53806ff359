// TMA: tensor maps, tile and im2col loads into shared memory, tile stores (PTX ISA 8.x, "cp.async.bulk.tensor").
// Coordinates run from the innermost dimension, in elements.
#pragma once

namespace at {
namespace ptx {

// ---- Tensor maps, which a kernel's prepare() asks for. They are 128 bytes in the kernel's parameters. ----

constexpr int kTensorMapBytes = 128;

// Describes a contiguous tensor; `sizes`, `box` and `element_strides` run from the innermost dimension.
template <typename Element, int rank>
AT_DEVICE void describe_tensor_map(at_tensor_map& map, const uint64_t (&sizes)[rank], const uint32_t (&box)[rank],
                                   const uint32_t (&element_strides)[rank]) {
  map.rank = rank;
  uint64_t stride = sizeof(Element);
  for (int i = 0; i < rank; ++i) {
    map.sizes[i] = sizes[i];
    map.box[i] = box[i];
    map.element_strides[i] = element_strides[i];
    stride *= sizes[i];
    if (i + 1 < rank) map.strides[i] = stride;
  }
}

// The CUtensorMapSwizzle of an operand with rows of 32, 64 or 128 bytes: 32B, 64B or 128B.
AT_DEVICE constexpr int swizzle_mode(int row_bytes) { return row_bytes == 128 ? 3 : row_bytes == 64 ? 2 : 1; }

// ---- Loads. They count their bytes at an mbarrier. With kMulticast the box and the bytes go to the same offsets of
// all
//      blocks of the cluster in `cta_mask`. ----

AT_DEVICE void prefetch_tensormap(const void* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

template <bool kMulticast>
AT_DEVICE void tma_load_3d(uint32_t to, const void* map, uint32_t barrier, int x, int y, int z, uint16_t cta_mask) {
  if constexpr (kMulticast)
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(cta_mask)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
            "r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}

template <bool kMulticast>
AT_DEVICE void tma_load_2d(uint32_t to, const void* map, uint32_t barrier, int x, int y, uint16_t cta_mask) {
  if constexpr (kMulticast)
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(cta_mask)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            to),
        "l"(map), "r"(barrier), "r"(x), "r"(y)
        : "memory");
}

template <bool kMulticast = false>
AT_DEVICE void tma_load_4d(uint32_t to, const void* map, uint32_t barrier, int x, int y, int z, int w,
                           uint16_t cta_mask = 0) {
  if constexpr (kMulticast)
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "h"(cta_mask)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}

// Loads rows of the im2col matrix, from the starting pixel (n, h, w) on, at a filter tap's offset (PTX ISA, "im2col
// mode").
template <bool kMulticast>
AT_DEVICE void tma_load_im2col(uint32_t to, const void* map, uint32_t barrier, int c, int w, int h, int n,
                               uint16_t offset_w, uint16_t offset_h, uint16_t cta_mask) {
  if constexpr (kMulticast)
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n), "h"(offset_w), "h"(offset_h), "h"(cta_mask)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(to),
        "l"(map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n), "h"(offset_w), "h"(offset_h)
        : "memory");
}

// ---- Stores. They are clipped to the tensor. A thread commits its stores in groups and waits for groups. ----

AT_DEVICE void tma_store_2d(const void* map, uint32_t from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
               "r"(x), "r"(y)
               : "memory");
}

AT_DEVICE void tma_store_4d(const void* map, uint32_t from, int c, int w, int h, int n) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(from), "r"(c), "r"(w), "r"(h), "r"(n)
               : "memory");
}

AT_DEVICE void tma_store_arrive() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most `pending` of this thread's committed groups still read shared memory.
template <int pending>
AT_DEVICE void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// Waits until all of this thread's committed stores are in global memory.
AT_DEVICE void tma_store_wait_complete() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Makes this thread's writes to shared memory visible to the async proxy: TMA and wgmma.
AT_DEVICE void fence_view_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace ptx
}  // namespace at
