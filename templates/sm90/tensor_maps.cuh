// The tensor maps that prepare() asks the engine for.
#pragma once
#include "common/ptx/tma.cuh"

namespace at {

// Appends a map with the swizzle of rows of row_bytes. offset: of the map in Params. pointer: of its tensor.
template <typename Config>
AT_DEVICE at_tensor_map& add_tensor_map(at_prepared* out, int offset, int pointer, int row_bytes) {
  at_tensor_map& map = out->tensor_maps[out->tensor_map_count++];
  map = {offset, pointer, Config::kMapElement, ptx::swizzle_mode(row_bytes)};
  return map;
}

// Sets the bounding box of im2col mode. pixels: of one load. reach: pixels from the filter's first tap to its last.
AT_DEVICE void set_im2col_box(at_tensor_map& map, int pixels, int pad_h, int pad_w, int reach_h, int reach_w) {
  map.pixels = pixels;
  map.lower[0] = -pad_w;
  map.lower[1] = -pad_h;
  map.upper[0] = pad_w - reach_w;
  map.upper[1] = pad_h - reach_h;
}

}  // namespace at
