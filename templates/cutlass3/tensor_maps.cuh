// The tensor-map part of CUTLASS 3.x's host-side preparation, for host and device. A kernel's `prepare` describes the
// maps; the engine encodes them with the operands' addresses.
#pragma once
#include "cute/tensor.hpp"

namespace at {

// The CUtensorMapDataType of T. If nothing is converted, CUTLASS loads unsigned integers of the element's size.
template <typename T>
CUTE_HOST_DEVICE constexpr int map_element() {
  if constexpr (cute::is_same_v<T, uint8_t> || cute::is_same_v<T, int8_t>) return 0;
  else if constexpr (cute::is_same_v<T, uint16_t>) return 1;
  else if constexpr (cute::is_same_v<T, uint32_t>) return 2;
  else if constexpr (cute::is_same_v<T, cutlass::half_t>) return 6;
  else if constexpr (cute::is_same_v<T, float>) return 7;
  else if constexpr (cute::is_same_v<T, cutlass::bfloat16_t>) return 9;
  else {
    static_assert(cute::is_same_v<T, cutlass::tfloat32_t>, "no tensor map has such elements");
    return 11;
  }
}

template <typename T, typename Map>
CUTE_HOST_DEVICE void begin_map(at_tensor_map& map, Map const* to, int pointer, int swizzle, void const* params) {
  map = at_tensor_map{};
  map.params_offset = (int)((char const*)to - (char const*)params);
  map.pointer = pointer;
  map.element = map_element<T>();
  map.swizzle = swizzle;
}

template <typename Tensor>
using ElementOf = cute::remove_const_t<typename Tensor::value_type>;

// Describes the tiled map of an operand. The type of `copy`, a member of the kernel's parameters, defines how the
// operand's modes become those of the map. `blocks` blocks of a cluster share a load (multicast); each loads its part
// of the box.
template <typename Copy, typename Tensor>
CUTE_HOST_DEVICE void describe_tiled(at_tensor_map& map, Copy const& copy, Tensor const& tensor, int pointer,
                                     int blocks, void const* params) {
  using Basis = typename Copy::AuxParams::TmaGmemBasis;
  using Element = ElementOf<Tensor>;
  static_assert(cute::is_static<typename Copy::AuxParams::GmemStrides>::value, "coordinates would have to be scaled");
  constexpr int kRank = decltype(cute::rank(Basis{}))::value;
  begin_map<Element>(map, copy.get_tma_descriptor(), pointer,
                     (int)cute::detail::get_tma_swizzle_bits(typename Copy::AuxParams::TmaSwizzle{}), params);
  map.rank = kRank;
  cute::array<uint64_t, 5> sizes{1, 1, 1, 1, 1}, strides{0, 0, 0, 0, 0};
  cute::detail::fill_tma_gmem_shape_stride(tensor, cute::stride(Basis{}), sizes, strides);
  cute::for_each(cute::make_seq<kRank>{}, [&](auto i) {
    map.sizes[i] = sizes[i];
    map.box[i] = cute::size<i>(Basis{});
    map.element_strides[i] = 1;
    if constexpr (i > 0) map.strides[i - 1] = strides[i] * sizeof(Element);
  });
  for (int i = kRank - 1, left = blocks; left > 1; --i) {  // divides the outermost mode first
    int const extent = map.box[i];
    map.box[i] = (extent + left - 1) / left;
    left = (left + extent - 1) / extent;
  }
}

// The spatial geometry of a convolution's operand. Pairs are (w, h).
struct Window {
  using Two = cute::tuple<int, int>;
  Two lower, upper;         // corners of the bounding box of base pixels
  Two padding, stride;      // of the convolution
  Two first_tap, tap_step;  // input offsets of the first tap, and from tap to tap
};

// Describes the im2col map of an image ((w, h, n), c) or (c, (w, h, n)). It also sets the coordinate tensor of `copy`:
// the im2col matrix in TMA coordinates.
template <typename Copy, typename Tensor, typename SharedLayout>
CUTE_HOST_DEVICE void describe_im2col(at_tensor_map& map, Copy& copy, Tensor const& tensor, SharedLayout const& shared,
                                      int pointer, int blocks, Window const& window, void const* params) {
  using namespace cute;
  using Element = ElementOf<Tensor>;
  // A load fills contiguous shared memory: some channels of some pixels.
  auto const modes = make_identity_layout(product_each(shape(tensor.layout()))).compose(product_each(shape(shared)));
  auto const basis = make_identity_layout(product_each(shape(tensor.layout())));
  auto const filled =
      flatten(composition(basis, coalesce(composition(modes, right_inverse(get_nonswizzle_portion(shared))))));
  auto const box = take<0, 2>(filled);
  auto const channel_mode = stride<0>(box);
  auto const pixel_mode = stride<1>(box);
  begin_map<Element>(map, copy.get_tma_descriptor(), pointer,
                     (int)detail::get_tma_swizzle_bits(get_swizzle_portion(shared)), params);
  auto const pixels = basis_get(pixel_mode, shape(tensor.layout()));
  auto const pixel_strides = basis_get(pixel_mode, stride(tensor.layout()));
  auto const channels = basis_get(channel_mode, shape(tensor.layout()));
  map.rank = 4;
  map.box[0] = size<0>(box);
  map.pixels = int(size<1>(box)) / blocks;
  map.sizes[0] = channels;
  map.element_strides[0] = map.element_strides[3] = 1;
  for_each(make_seq<3>{}, [&](auto i) {
    map.sizes[i + 1] = get<i>(pixels);
    map.strides[i] = get<i>(pixel_strides) * sizeof(Element);
  });
  for_each(make_seq<2>{}, [&](auto i) {
    map.element_strides[i + 1] = get<i>(window.stride);
    map.lower[i] = get<i>(window.lower);
    map.upper[i] = get<i>(window.upper);
  });

  // The matrix ((q, p, n), (c, s, r)), or its transpose, in the coordinates of a TMA load: c, (w, h), n, (s, r).
  auto const outputs =
      append(cute::transform(make_seq<2>{},
                             [&](auto i) {
                               return (get<i>(pixels) + get<i>(window.upper) - get<i>(window.lower) - Int<1>{}) /
                                          get<i>(window.stride) +
                                      Int<1>{};
                             }),
             get<2>(pixels));
  auto const taps =
      prepend(cute::transform(make_seq<2>{},
                              [&](auto i) {
                                auto const step = get<i>(window.tap_step);
                                return Int<1>{} + (step > 0 ? get<i>(window.padding) - get<i>(window.upper)
                                                            : get<i>(window.lower) - get<i>(window.padding)) /
                                                      step;
                              }),
              channels);
  auto const scale = make_shape(Int<1>{}, window.stride, Int<1>{}, window.tap_step);
  auto const coordinates = elem_scale(scale, make_basis_like(scale));
  auto const pixel_steps = append(get<1>(coordinates), get<2>(coordinates));
  auto const tap_steps = prepend(get<3>(coordinates), get<0>(coordinates));
  auto const divided =
      make_shape(transform_leaf(outputs, [](auto extent) { return cutlass::FastDivmod(extent); }), taps);
  auto const steps = make_stride(pixel_steps, tap_steps);
  auto const linear = make_shape(size(outputs), taps);
  // Pixels come first if they are the operand's first mode.
  auto const many = make_layout(make_shape(basis_get(pixel_mode, divided), basis_get(channel_mode, divided)),
                                make_stride(basis_get(pixel_mode, steps), basis_get(channel_mode, steps)));
  auto const one = make_identity_tensor(make_shape(basis_get(pixel_mode, linear), basis_get(channel_mode, linear)));
  auto const corner = make_arithmetic_tuple(Int<0>{}, window.lower, Int<0>{}, window.first_tap);
  auto const matrix = make_tensor(ArithmeticTupleIterator(corner), many);
  copy.tma_tensor_ = make_tensor(matrix.data(), composition(matrix.layout(), one(Int<0>{}), one.layout()));
}

}  // namespace at
