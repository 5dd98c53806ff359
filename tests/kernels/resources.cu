// Kernels with known kinds of resources, for tests/autotune/codegen/test_kernel_resources.py. A block of 1024 threads
// leaves each thread 64 registers.

template <typename Number, int N>
__device__ __forceinline__ void mix(Number* out, const Number* in, int steps) {
  Number v[N];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = in[i * 1024 + threadIdx.x];
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = v[i] * v[(i + 1) % N] + in[step];
  }
#pragma unroll
  for (int i = 0; i < N; ++i) out[i * 1024 + threadIdx.x] = v[i];
}

__device__ __noinline__ void called(float* out, const float* in, int steps) { mix<float, 80>(out, in, steps); }

extern "C" __global__ void __launch_bounds__(1024) fits(float* out, const float* in, int steps) {
  mix<float, 16>(out, in, steps);
}

extern "C" __global__ void __launch_bounds__(1024) spills(float* out, const float* in, int steps) {
  mix<float, 80>(out, in, steps);
}

extern "C" __global__ void __launch_bounds__(1024) spills_pairs(double* out, const double* in, int steps) {
  mix<double, 40>(out, in, steps);
}

extern "C" __global__ void __launch_bounds__(1024) spills_in_a_call(float* out, const float* in, int steps) {
  called(out, in, steps);
}

extern "C" __global__ void has_an_array(float* out, const int* in, int count) {
  float v[64];
  for (int i = 0; i < count; ++i) v[in[i]] = i;
  out[threadIdx.x] = v[in[threadIdx.x]];
}

extern "C" __global__ void shares(float* out) {
  __shared__ float fixed[100];
  extern __shared__ float by_launch[];
  fixed[threadIdx.x] = out[threadIdx.x];
  by_launch[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = fixed[99 - threadIdx.x] + by_launch[99 - threadIdx.x];
}
