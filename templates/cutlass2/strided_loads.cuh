// Two-stage main loops of strided dgrad with accesses of any width.
//
// CUTLASS's tile iterator makes one access per vector of a thread. If an access is narrower than a vector, as for
// alignment 1, the rest of the vector is not loaded. StridedLoads makes all accesses.
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

  // Advances to the next tile. In the base class, operator++ advances by one access.
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
