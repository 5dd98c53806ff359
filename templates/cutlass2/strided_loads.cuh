// Two-stage main loops of strided input gradients, with loads of any width.
//
// CUTLASS's own tile iterator for them makes one access for each vector of a thread: where an access is narrower, as
// all are that move single elements, the rest of the vector is not read.
#pragma once
#include "cutlass/conv/threadblock/conv2d_tile_iterator.h"
#include "cutlass/conv/threadblock/implicit_gemm_pipelined.h"

namespace at {

template <typename Access>
struct StridedLoads : Access {
  using Element = typename Access::Element;
  using Map = typename Access::ThreadMap;
  using Fragment = cutlass::Array<Element, Map::Iterations::kCount * Map::kElementsPerAccess>;
  using Access::Access;

  CUTLASS_DEVICE void load(Fragment& fragment) {
    using Vector = typename Access::AccessType;
    fragment.clear();
    this->set_iteration_index(0);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Map::Iterations::kCount * Access::kAccessesPerVector; ++i) {
      Vector& part = reinterpret_cast<Vector*>(&fragment)[i];
      cutlass::arch::global_load<Vector, sizeof(Vector)>(part, this->get(), this->valid());
      Access::operator++();
    }
  }

  // The next tile: what an access iterator's operator++ is for single accesses.
  CUTLASS_DEVICE void operator++() { this->advance(); }
};

template <typename Mma>
struct WithStridedLoads {
  using type = Mma;
};

template <typename Shape, typename A, typename SharedA, typename B, typename SharedB, typename... More>
struct WithStridedLoads<cutlass::conv::threadblock::ImplicitGemmPipelined<
    Shape, cutlass::conv::threadblock::TileIteratorStridedDgrad<A>, SharedA,
    cutlass::conv::threadblock::TileIteratorStridedDgrad<B>, SharedB, More...>> {
  using type = cutlass::conv::threadblock::ImplicitGemmPipelined<Shape, StridedLoads<A>, SharedA, StridedLoads<B>,
                                                                 SharedB, More...>;
};

}  // namespace at
