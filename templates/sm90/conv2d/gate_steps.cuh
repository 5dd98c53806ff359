// What the kinds of squeeze-and-excitation of the convolution share.
#pragma once
#include "sm90/conv2d/plan.cuh"
#include "sm90/fragment.cuh"

namespace at {

// Sets the parameters of a gate. Returns why the kernel does not solve the problem, or null.
template <typename P, typename Problem>
AT_DEVICE const char* set_gate(const Problem& a, int hidden, typename P::Params& params) {
  using Launch = typename P::Launch;
  if (P::kPatch && (a.p != 8 * a.launch[Launch::kSquaresH] || a.q != 8 * a.launch[Launch::kSquaresW]))
    return "with a gate a tile must hold whole images: squares_h * 8 = p, squares_w * 8 = q";
  params.pixels = a.p * a.q;
  params.hidden = hidden;
  return nullptr;
}

template <typename Layout>
AT_DEVICE char* gate_memory(const Layout& smem) {
  return static_cast<char*>(__cvta_shared_to_generic(smem.gate));
}

// Applies the steps before the gate to eight channels of both halves of a warp's rows.
template <typename Config, typename Params, typename Accum>
AT_DEVICE void apply_before(const Params& params, int m, int columns, int channel, Accum& accum, float (&v)[2][8]) {
  AT_UNROLL for (int half = 0; half < 2; ++half) {
    load_fragment(v[half], accum, m, half, columns);
    if (channel < params.k) Config::Steps::before(v[half], params.p.p, params.scalars, channel);
    store_fragment(v[half], accum, m, half, columns);
  }
}

}  // namespace at
