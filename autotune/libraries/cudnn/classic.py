"""cuDNN's classic convolution algorithms, by number: the older API, called in the library that torch loads.

A number stands for one algorithm of a pass in every version of cuDNN ("1" forward is IMPLICIT_PRECOMP_GEMM). The sizes,
dtypes and memory formats that an algorithm supports differ. No Python package besides torch is needed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from autotune.core import LibraryError
from autotune.ir.operators import Convolution

FORWARD, BACKWARD_DATA, BACKWARD_FILTER = "forward", "backward-data", "backward-filter"

NAMES: dict[str, tuple[str, ...]] = {
    FORWARD: (
        "IMPLICIT_GEMM",
        "IMPLICIT_PRECOMP_GEMM",
        "GEMM",
        "DIRECT",
        "FFT",
        "FFT_TILING",
        "WINOGRAD",
        "WINOGRAD_NONFUSED",
    ),
    BACKWARD_DATA: ("ALGO_0", "ALGO_1", "FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"),
    BACKWARD_FILTER: ("ALGO_0", "ALGO_1", "FFT", "ALGO_3", "WINOGRAD", "WINOGRAD_NONFUSED", "FFT_TILING"),
}
"""The algorithms of each pass, in the order of their numbers."""

# Each pass: the word in its functions' names, and its tensors in the order of the arguments: two inputs, the output.
_PASSES = {
    FORWARD: ("Forward", ("x", "weight", "y")),
    BACKWARD_DATA: ("BackwardData", ("weight", "y", "x")),
    BACKWARD_FILTER: ("BackwardFilter", ("x", "y", "weight")),
}
# Values of cuDNN's enumerations.
_DATA_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 9}
_FLOAT, _CROSS_CORRELATION, _NCHW, _NHWC = 0, 1, 0, 1
_DEFAULT_MATH, _TENSOR_OP_MATH, _FMA_MATH = 0, 1, 3
_MATH = {0: "default", 1: "tensor op", 2: "tensor op, inputs rounded", 3: "fma"}


class _Performance(ctypes.Structure):
    """cudnnConvolution{Fwd,BwdData,BwdFilter}AlgoPerf_t, which have the same layout."""

    _fields_ = (
        ("algo", ctypes.c_int),
        ("status", ctypes.c_int),
        ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int),
        ("math_type", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    )


@dataclass(frozen=True)
class Geometry:
    """A convolution as cuDNN's descriptors define it, in torch's terms; shapes are (n, c, h, w).

    Attributes:
        x: Shape of the input.
        weight: Shape of the filter (k, c / groups, r, s).
        y: Shape of the output.
        stride: Along height and width.
        pad: Along height and width.
        dilation: Along height and width.
        groups: Number of groups.
        dtype: Dtype of all tensors.
        channels_last: Whether all tensors are channels last in memory.
        tf32: Whether factors of float32 tensors may be rounded to TF32, as torch.backends.cudnn.allow_tf32 says.
        device: The GPU.
    """

    x: tuple[int, ...]
    weight: tuple[int, ...]
    y: tuple[int, ...]
    stride: tuple[int, int]
    pad: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    dtype: torch.dtype
    channels_last: bool
    tf32: bool
    device: torch.device

    @classmethod
    def of(
        cls, problem: Convolution, dtype: torch.dtype, channels_last: bool, device: torch.device, tf32: bool = False
    ) -> Geometry:
        """Return the geometry of a problem, for any pass."""
        return cls(
            (problem.n, problem.c, problem.h, problem.w),
            (problem.k, problem.c // problem.groups, problem.r, problem.s),
            (problem.n, problem.k, problem.p, problem.q),
            problem.stride,
            problem.pad,
            problem.dilation,
            problem.groups,
            dtype,
            channels_last,
            tf32,
            device,
        )

    @property
    def memory_format(self) -> torch.memory_format:
        """Memory format of all tensors."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


@dataclass(frozen=True)
class AlgorithmInfo:
    """Properties of an algorithm that cuDNN reports without running it.

    Attributes:
        number: Its number.
        name: Its name.
        workspace_bytes: Size of the workspace it needs.
        deterministic: Whether the same input always gives the same bits; None if cuDNN does not say.
        math: The arithmetic that cuDNN names.
        error: Why it cannot run on these sizes; None if it can.
    """

    number: int
    name: str
    workspace_bytes: int = 0
    deterministic: bool | None = None
    math: str = ""
    error: str | None = None


class ClassicConvolution:
    """A convolution by its cuDNN descriptors.

    Raises:
        LibraryError: There is no GPU, the dtype is not supported, or cuDNN cannot be loaded.
    """

    def __init__(self, geometry: Geometry) -> None:
        if geometry.device.type != "cuda":
            raise LibraryError(f"cuDNN's algorithms need an NVIDIA GPU, and the device is {geometry.device}")
        if geometry.dtype not in _DATA_TYPES:
            raise LibraryError(
                f"cuDNN's algorithms are available in {', '.join(map(_plain, _DATA_TYPES))}, not in "
                f"{_plain(geometry.dtype)}"
            )
        self.geometry = geometry
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        self._descriptors = {
            "x": self._tensor(geometry.x),
            "y": self._tensor(geometry.y),
            "weight": self._filter(geometry.weight),
        }
        self._convolution = self._window()

    def __del__(self) -> None:
        for kind, descriptor in self.__dict__.get("_made", []):
            getattr(load(), f"cudnnDestroy{kind}Descriptor")(descriptor)

    @property
    def _cudnn(self) -> _Cudnn:
        return _handle(self.geometry.device)

    # -- descriptors -----------------------------------------------------------------------------------------

    def _new(self, kind: str) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self._cudnn.call(f"cudnnCreate{kind}Descriptor", ctypes.byref(descriptor))
        self._made.append((kind, descriptor))
        return descriptor

    def _tensor(self, shape: Sequence[int]) -> ctypes.c_void_p:
        descriptor, kind = self._new("Tensor"), _NHWC if self.geometry.channels_last else _NCHW
        self._cudnn.call("cudnnSetTensor4dDescriptor", descriptor, kind, _DATA_TYPES[self.geometry.dtype], *shape)
        return descriptor

    def _filter(self, shape: Sequence[int]) -> ctypes.c_void_p:
        descriptor, kind = self._new("Filter"), _NHWC if self.geometry.channels_last else _NCHW
        self._cudnn.call("cudnnSetFilter4dDescriptor", descriptor, _DATA_TYPES[self.geometry.dtype], kind, *shape)
        return descriptor

    def _window(self) -> ctypes.c_void_p:
        at, descriptor = self.geometry, self._new("Convolution")
        values = (*at.pad, *at.stride, *at.dilation, _CROSS_CORRELATION, _FLOAT)
        self._cudnn.call("cudnnSetConvolution2dDescriptor", descriptor, *values)
        self._cudnn.call("cudnnSetConvolutionGroupCount", descriptor, at.groups)
        half = at.dtype != torch.float32  # as torch does
        math = _TENSOR_OP_MATH if half else _DEFAULT_MATH if at.tf32 else _FMA_MATH
        self._cudnn.call("cudnnSetConvolutionMathType", descriptor, math)
        return descriptor

    # -- asking and running ----------------------------------------------------------------------------------

    def answers(self, direction: str) -> list[AlgorithmInfo]:
        """Return all algorithms of a pass in the order of their numbers; nothing is run."""
        word, _ = _PASSES[direction]
        room = 2 * len(NAMES[direction])
        results, count = (_Performance * room)(), ctypes.c_int()
        asked = f"cudnnGetConvolution{word}Algorithm_v7"
        self._cudnn.call(asked, *self._in_order(direction), room, ctypes.byref(count), results)
        told = {int(result.algo): result for result in reversed(results[: count.value]) if result.status == 0}
        return [self._answer(direction, number, told.get(number)) for number in range(len(NAMES[direction]))]

    def _answer(self, direction: str, number: int, told: Any) -> AlgorithmInfo:
        name = NAMES[direction][number]
        try:
            size = self.workspace_bytes(direction, number)
        except LibraryError as error:
            return AlgorithmInfo(number, name, error=str(error))
        if told is None:
            return AlgorithmInfo(number, name, size)
        return AlgorithmInfo(number, name, size, bool(told.determinism), _MATH.get(told.math_type, str(told.math_type)))

    def workspace_bytes(self, direction: str, number: int) -> int:
        """Return the workspace of an algorithm in bytes; raises LibraryError if it does not support these sizes."""
        word, _ = _PASSES[direction]
        size = ctypes.c_size_t()
        asked = f"cudnnGetConvolution{word}WorkspaceSize"
        self._cudnn.call(asked, *self._in_order(direction), number, ctypes.byref(size))
        return size.value

    def run(
        self,
        direction: str,
        number: int,
        tensors: dict[str, torch.Tensor],
        workspace: torch.Tensor,
        stream: int,
    ) -> None:
        """Launch a pass.

        Args:
            direction: The pass.
            number: The algorithm.
            tensors: x, weight and y in the geometry's memory format. In a backward pass y holds the gradient of the
                output, and x or weight receives its gradient.
            workspace: At least `workspace_bytes(direction, number)` bytes.
            stream: Handle of a CUDA stream.

        Raises:
            LibraryError: cuDNN reports an error.
        """
        word, order = _PASSES[direction]
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        first, second, out = ((self._descriptors[name], ctypes.c_void_p(tensors[name].data_ptr())) for name in order)
        room = (ctypes.c_void_p(workspace.data_ptr()), ctypes.c_size_t(workspace.numel()))
        self._cudnn.call("cudnnSetStream", ctypes.c_void_p(stream))
        self._cudnn.call(
            f"cudnnConvolution{word}",
            ctypes.byref(one), *first, *second, self._convolution, number, *room, ctypes.byref(zero), *out,
        )  # fmt: skip

    def _in_order(self, direction: str) -> Iterator[ctypes.c_void_p]:
        first, second, out = (self._descriptors[name] for name in _PASSES[direction][1])
        yield from (first, second, self._convolution, out)


# Functions whose first argument is not the handle.
_WITHOUT_HANDLE = ("cudnnCreate", "cudnnSetTensor", "cudnnSetFilter", "cudnnSetConvolution")


@dataclass(frozen=True)
class _Cudnn:
    """The library and a handle of one device and thread."""

    library: Any
    handle: ctypes.c_void_p

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of cuDNN; raises LibraryError with the name of the status if it fails."""
        own = () if name.startswith(_WITHOUT_HANDLE) else (self.handle,)
        if status := getattr(self.library, name)(*own, *arguments):
            raise LibraryError(f"{name}: {_word(self.library, status)}")


_mine = threading.local()  # a handle must not be used by two threads at once, and autograd runs in a thread of its own


def _handle(device: torch.device) -> _Cudnn:
    handles: dict[str, _Cudnn] = _mine.__dict__
    key = f"cuda{device.index or 0}"
    if key not in handles:
        library, handle = load(), ctypes.c_void_p()
        with torch.cuda.device(device):
            if status := library.cudnnCreate(ctypes.byref(handle)):
                raise LibraryError(f"cuDNN cannot create a handle for {device}: {_word(library, status)}")
        handles[key] = _Cudnn(library, handle)
    return handles[key]


@cache
def load() -> Any:
    """Load the libcudnn.so.9 that torch uses; raises LibraryError if there is none or an older one."""
    version = torch.backends.cudnn.version()  # makes torch load the library
    if version is None:
        raise LibraryError("torch has no cuDNN here: install a build of torch for NVIDIA GPUs")
    if version < 90000:
        raise LibraryError(
            f"torch uses cuDNN {version}: its algorithms need cuDNN 9 (90000) or newer, so install a newer torch"
        )
    package = importlib.util.find_spec("nvidia.cudnn") if importlib.util.find_spec("nvidia") else None
    folders = [Path(place) / "lib" for place in (package.submodule_search_locations or [])] if package else []
    for name in ("libcudnn.so.9", *(str(folder / "libcudnn.so.9") for folder in folders)):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise LibraryError(f"libcudnn.so.9, which torch uses, cannot be found: pip install {_package()}")


def _package() -> str:
    return f"nvidia-cudnn-cu{str(torch.version.cuda).partition('.')[0]}"


def _word(library: Any, status: int) -> str:
    """Return cuDNN's name of a status, without its prefix."""
    library.cudnnGetErrorString.restype = ctypes.c_char_p
    name: bytes = library.cudnnGetErrorString(status)
    return name.decode().removeprefix("CUDNN_STATUS_")


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
