// The maximum of two elements. It propagates NaN, as torch does.
#pragma once

namespace at {

AT_DEVICE float larger(float a, float b) {
#if __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
#else
  return b > a || b != b ? b : a;
#endif
}
AT_DEVICE signed char larger(signed char a, signed char b) { return b > a ? b : a; }

AT_DEVICE __half2 larger(__half2 a, __half2 b) {
#if __CUDA_ARCH__ >= 800
  return __hmax2_nan(a, b);
#else
  return __floats2half2_rn(larger(__low2float(a), __low2float(b)), larger(__high2float(a), __high2float(b)));
#endif
}

#if __CUDA_ARCH__ >= 800  // older architectures have no bfloat16 kernels
AT_DEVICE __nv_bfloat162 larger(__nv_bfloat162 a, __nv_bfloat162 b) { return __hmax2_nan(a, b); }
#endif

template <typename Element>
struct Pair {};
template <>
struct Pair<half> {
  using type = __half2;
};
template <>
struct Pair<bfloat16> {
  using type = __nv_bfloat162;
};

// best = max(best, x) per element; 16-bit elements are compared in pairs.
template <typename Element, int N>
AT_DEVICE void raise(Pack<Element, N>& best, const Pack<Element, N>& x) {
  if constexpr (sizeof(Element) == 2 && N % 2 == 0) {
    using Two = typename Pair<Element>::type;
    AT_UNROLL for (int i = 0; i < N / 2; ++i) {
      Two& to = reinterpret_cast<Two*>(best.elements)[i];
      to = larger(to, reinterpret_cast<const Two*>(x.elements)[i]);
    }
  } else {
    AT_UNROLL for (int i = 0; i < N; ++i) {
      if constexpr (sizeof(Element) == 2)
        from_float(best.elements[i], larger(to_float(best.elements[i]), to_float(x.elements[i])));
      else best.elements[i] = larger(best.elements[i], x.elements[i]);
    }
  }
}

AT_DEVICE float lowest() { return __int_as_float(0xff800000); }  // minus infinity; int8 conversion saturates it to -128

}  // namespace at
