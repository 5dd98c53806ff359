"""Calls of torch that are no operators, as operators: a trace does not see the former."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from autotune.core import CaptureError


class AsOperators(TorchFunctionMode):
    """Lets `x.data` be `x.detach()`, and `x.contiguous()` be `aten.alias` where x is contiguous already.

    For another memory format of the input, the latter may be a copy.

    Raises:
        CaptureError: Forward sets `x.data`.
    """

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            return args[0].detach()
        if func == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
            raise CaptureError("forward sets .data of a tensor: write x.detach().copy_(y) instead of x.data = y")
        if func is torch.Tensor.contiguous:
            result = func(*args, **kwargs)
            return torch.ops.aten.alias.default(result) if result is args[0] else result
        return func(*args, **kwargs)
