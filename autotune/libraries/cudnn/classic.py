"""cuDNN's classic convolution algorithms, by their numbers: the older API, called in the library that torch brings.

A number means one way to compute a pass ("1" forward is IMPLICIT_PRECOMP_GEMM), whatever the version of cuDNN; what it
supports differs by sizes, dtype and memory format. Nothing here needs a Python package beside torch.
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
from autotune.ir import Convolution

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

# Each pass by the word in its functions' names, and its tensors in the order that they take: two inputs, the output.
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
    """cudnnConvolution{Fwd,BwdData,BwdFilter}AlgoPerf_t, which are one."""

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
    """All that cuDNN's descriptors say of a convolution, in torch's terms; shapes in the order n, c, h, w.

    tf32: whether the factors of float32 tensors may be rounded to TF32, as torch.backends.cudnn.allow_tf32 says.
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
        """The geometry of a problem, whichever its pass."""
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
        """The format of all tensors."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


@dataclass(frozen=True)
class AlgorithmInfo:
    """What cuDNN says of an algorithm without running it; error: why it cannot be run on these sizes."""

    number: int
    name: str
    workspace_bytes: int = 0
    deterministic: bool | None = None
    math: str = ""
    error: str | None = None


class ClassicConvolution:
    """A convolution's descriptors, in cuDNN's memory, and what can be done with them."""

    def __init__(self, geometry: Geometry) -> None:
        if geometry.device.type != "cuda":
            raise LibraryError("cuDNN's algorithms need an NVIDIA GPU")
        if geometry.dtype not in _DATA_TYPES:
            raise LibraryError(f"cuDNN's algorithms are used in {', '.join(map(_plain, _DATA_TYPES))}")
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
        half = at.dtype != torch.float32  # what torch asks for, too
        math = _TENSOR_OP_MATH if half else _DEFAULT_MATH if at.tf32 else _FMA_MATH
        self._cudnn.call("cudnnSetConvolutionMathType", descriptor, math)
        return descriptor

    # -- asking and running ----------------------------------------------------------------------------------

    def answers(self, direction: str) -> list[AlgorithmInfo]:
        """All algorithms of a pass, by their numbers; nothing is run."""
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
        """Bytes of workspace that an algorithm needs; raises LibraryError if it does not support these sizes."""
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
        """Enqueue a pass on a CUDA stream; raises LibraryError.

        tensors: x, weight and y in the geometry's memory format; of a gradient, the place of what it is of.
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
        """Call a function; raises LibraryError with cuDNN's word for what went wrong."""
        own = () if name.startswith(_WITHOUT_HANDLE) else (self.handle,)
        if status := getattr(self.library, name)(*own, *arguments):
            raise LibraryError(f"{name}: {_word(self.library, status)}")


_mine = threading.local()  # cuDNN's handles are not for several threads at once, and autograd has its own


def _handle(device: torch.device) -> _Cudnn:
    handles: dict[str, _Cudnn] = _mine.__dict__
    key = f"cuda{device.index or 0}"
    if key not in handles:
        library, handle = load(), ctypes.c_void_p()
        with torch.cuda.device(device):
            if status := library.cudnnCreate(ctypes.byref(handle)):
                raise LibraryError(f"cuDNN makes no handle for {device}: {_word(library, status)}")
        handles[key] = _Cudnn(library, handle)
    return handles[key]


@cache
def load() -> Any:
    """torch's own libcudnn.so.9; raises LibraryError where there is none, or an older one."""
    version = torch.backends.cudnn.version()  # has torch load it
    if version is None:
        raise LibraryError("torch has no cuDNN here: its algorithms need a build of torch for NVIDIA GPUs")
    if version < 90000:
        raise LibraryError(f"torch brings cuDNN {version // 1000}: its algorithms are used from cuDNN 9 on")
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
    """cuDNN's name of a status, without its prefix."""
    library.cudnnGetErrorString.restype = ctypes.c_char_p
    return library.cudnnGetErrorString(status).decode().removeprefix("CUDNN_STATUS_")


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
