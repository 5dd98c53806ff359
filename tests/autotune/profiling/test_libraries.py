"""Names of kernels: their library, their source file, and their short form."""

import pytest

from autotune.profiling import libraries
from autotune.profiling.libraries import short_name

FUNCTOR = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<c10::Half>, std::array<char*, 3ul>)"
)


@pytest.mark.parametrize(
    ("name", "operators", "library", "where"),
    [
        (FUNCTOR, ["aten::add"], "ATen", "aten/src/ATen/native/ufunc/add.h"),
        (
            "void at::native::(anonymous namespace)::avg_pool2d_out_cuda_frame_nhwc<c10::Half, float>(int)",
            ["aten::avg_pool2d"],
            "ATen",
            "aten/src/ATen/native/cuda/AveragePool2d.cu",
        ),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc", [], "cuDNN", "nvidia-cudnn"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop>(Params)", [], "cuDNN", "nvidia-cudnn"),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float>(p)", [], "cuDNN", "nvidia-cudnn"),
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", ["aten::mm"], "cuBLASLt", "nvidia-cublas"),
        ("void cutlass::Kernel2<cutlass_80_wmma_s161616gemm>(P)", ["aten::linear"], "cuBLAS", "nvidia-cublas"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm>(P)", ["mine::gemm"], "CUTLASS", "NVIDIA/cutlass"),
        ("triton_poi_fused_add_relu_3", ["triton_poi_fused_add_relu_3"], "Triton", "torch._inductor"),
        ("Memset (Device)", [], "CUDA driver", "memory"),
        ("sm90_conv2d_0123456789ab", [], "ours", "templates/"),
        ("my_kernel(float*)", ["mine::thing"], "unknown", ""),
    ],
)  # fmt: skip
def test_a_kernels_library_and_source_are_told_by_its_name_and_operator(name, operators, library, where):
    origin = libraries.kernel_origin(name, operators)
    assert origin.library == library and where in origin.where
    assert origin.open == (library in ("ATen", "CUTLASS", "Triton", "ours"))


def test_our_kernels_name_their_template_and_config():
    layer = {
        "symbol": "sm90_conv2d_0123456789ab",
        "template": "templates/sm90/conv2d/conv2d.cu.j2",
        "candidate": "sm90 a=1",
    }
    origin = libraries.kernel_origin("sm90_conv2d_0123456789ab", [], layer)
    assert origin == libraries.Origin("ours", True, "templates/sm90/conv2d/conv2d.cu.j2: sm90 a=1")


def test_brief_names_keep_what_tells_kernels_apart():
    assert short_name(FUNCTOR) == "vectorized_elementwise_kernel<CUDAFunctor_add>"
    assert short_name("aten::mkldnn_convolution") == "mkldnn_convolution"
    assert short_name("void cudnn::ops::nchwToNhwcKernel<__half, float>(p)") == "nchwToNhwcKernel"
    assert short_name("Memcpy DtoD (Device -> Device)") == "Memcpy DtoD"
    assert "s16816fprop" in short_name("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop>(Params)")
