// Shared by the CUTLASS 3.x GEMMs and convolutions: the epilogue, and passing the launch and parameters to the engine.
#pragma once
#define CUTLASS_ENABLE_GDC_FOR_SM90  // kernels use programmatic dependent launch
#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass3/steps.cuh"
#include "cutlass3/tensor_maps.cuh"

namespace at {

// Indices of the pointers: Problem.operands().
enum { kA = 0, kB = 1, kY = 2 };

template <typename Config, typename Tile, typename Part, typename Schedule, typename Layout>
using StepEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, cute::Shape<cute::_1, cute::_1, cute::_1>, Part, float,
    float, cute::conditional_t<(Config::Steps::kSources > 0), typename Config::Element, void>, Layout,
    Config::kAlignment, typename Config::Element, Layout, Config::kAlignment, Schedule,
    StepCallbacks<typename Config::Steps>>::CollectiveOp;

// A kernel's parameters, filled in at their place in at_prepared.
template <typename Kernel>
struct Preparing {
  using Params = typename Kernel::Params;
  static_assert(sizeof(Params) <= AT_MAX_PARAMS, "the kernel's parameters exceed what a launch can carry");
  static_assert(alignof(Params) >= 64, "tensor maps lie at multiples of 64 bytes");
  at_prepared* out;
  Params& params;

  CUTLASS_DEVICE Preparing(float const* scalars, at_prepared* out) : out(out), params(*new (out->params) Params{}) {
    out->tensor_map_count = 0;
    for (int i = 0; i < AT_MAX_SCALARS; ++i) params.epilogue.thread.scalars[i] = scalars[i];
  }

  CUTLASS_DEVICE at_tensor_map& next_map() { return out->tensor_maps[out->tensor_map_count++]; }

  // Describes the tensor maps of the output and of the steps' first tensor operand. source: that operand's pointer; 0
  // if the epilogue loads none by TMA.
  template <typename Tensor>
  CUTLASS_DEVICE void describe_output(Tensor const& tensor, int source) {
    describe_tiled(next_map(), params.epilogue.tma_store_d, tensor, kY, 1, &params);
    if (source > 0) describe_tiled(next_map(), params.epilogue.tma_load_c, tensor, source, 1, &params);
  }

  CUTLASS_DEVICE void launch(int grid_x, int grid_y, int shared_bytes, int64_t workspace_bytes) {
    out->status = AT_OK;
    out->grid[0] = grid_x;
    out->grid[1] = grid_y;
    out->grid[2] = 1;
    out->threads = Kernel::MaxThreadsPerBlock;
    out->shared_bytes = shared_bytes;
    out->params_bytes = sizeof(Params);
    out->pointers_offset = (int)((char const*)&params.epilogue.thread.p - (char const*)&params);
    out->abi_version = AT_ABI_VERSION;
    out->waits = AT_WAITS;
    out->workspace_bytes = workspace_bytes;
  }
};

}  // namespace at
