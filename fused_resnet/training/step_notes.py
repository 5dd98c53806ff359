"""Notes of what a training step calls: convolutions, batch norms, max pools and ReLUs, and the problems among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune.ir import Problem
from autotune.ir.operators import JOINED_RELU, NO_RELU, OWN_RELU, Convolution
from fused_resnet.training.convolution_passes.norms import (
    ADDITIONS,
    BATCH_NORM,
    IN_PLACE,
    MAX_POOLS,
    READERS,
    RELUS,
    TrainedNorm,
    TrainedPool,
    is_trained,
)
from fused_resnet.training.convolution_passes.passes import (
    passes,
    with_gradient_sums,
    with_mask,
    with_relu,
    with_statistics,
)

P = TypeVar("P", bound=Problem)

MOST_GRADIENTS = 2
"""Gradients with respect to one tensor that the kernels of BatchNormGradientSums add up."""

_KINDS = {"conv2d": "", "conv2d_dgrad": " by input", "conv2d_wgrad": " by weight"}
"""Operator -> what follows the layer's name."""


def numbered(found: Iterable[tuple[str, P]]) -> dict[str, P]:
    """Return problems by name; later ones of the same name are numbered."""
    seen: Counter[str] = Counter()
    named: dict[str, P] = {}
    for name, problem in found:
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name} ({seen[name]})"] = problem
    return named


class ConvolutionNotes(TorchDispatchMode):
    """Notes the calls of convolutions with the paths of the submodules that make them.

    Args:
        paths: The path of each submodule.
    """

    def __init__(self, paths: Mapping[nn.Module, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._paths = paths
        self._called = [""]  # paths of the submodules whose forward runs
        self._weights: dict[int, tuple[str, torch.Tensor]] = {}  # by its id: the path, and the weight to keep the id
        self._found: list[tuple[str, Convolution]] = []
        self._hooks = ExitStack()
        self.others = 0
        self.forward: tuple[Convolution, bool] | None = None  # the last forward pass, and whether it has a bias

    @property
    def path(self) -> str:
        """The path of the submodule whose forward runs."""
        return self._called[-1]

    def __enter__(self) -> ConvolutionNotes:
        for hook in (
            register_module_forward_pre_hook(lambda part, _: self._called.append(self._paths.get(part, ""))),
            register_module_forward_hook(self._leave),
        ):
            self._hooks.callback(hook.remove)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hooks.close()

    def _leave(self, *_: Any) -> None:  # a result other than None would replace that of the submodule
        self._called.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_forward = func.overloadpacket is torch.ops.aten.convolution
        if is_forward or func.overloadpacket is torch.ops.aten.convolution_backward:
            found = passes(func, args)
            self.others += not found
            weight = args[1 if is_forward else 2]
            if is_forward:
                self.forward = (found[0].problem, args[2] is not None) if found else None
                self._weights[id(weight)] = self._called[-1], weight
            path, _ = self._weights.get(id(weight), ("", None))
            self._found += [(path, one.problem) for one in found]
        return func(*args, **(kwargs or {}))

    def named(self) -> dict[str, Convolution]:
        """Return the problems by name; a submodule that is called several times has numbered ones."""
        return numbered(((path or "convolution") + _KINDS[problem.operator], problem) for path, problem in self._found)


@dataclass(eq=False)
class _CalledNorm:
    """A call of a batch norm in training, and what is known by now of what follows it."""

    path: str
    x: torch.Tensor
    convolution: Convolution | None = None  # without a bias, that computes x
    readers: list[Convolution | None] = field(default_factory=list)  # of the ReLU's result; None for others
    is_joined: bool = False  # another tensor is added
    added_to: _CalledNorm | None = None  # the batch norm whose result it is added to
    relu: int = NO_RELU
    is_read: bool = False  # by another pointwise operator

    @property
    def is_ours(self) -> bool:
        """Return whether kernels of ours can run it: it has a ReLU, or nothing pointwise is behind it."""
        added = self.added_to is None or self.added_to.relu == JOINED_RELU
        return self.relu != NO_RELU or (added and not self.is_read and not self.is_joined)


class NormNotes(TorchFunctionMode):
    """Notes the calls of batch norms in training and max pools, and the additions and ReLUs behind batch norms.

    Args:
        notes: The notes of convolutions.
    """

    def __init__(self, notes: ConvolutionNotes) -> None:
        super().__init__()
        self._notes = notes
        self._convolved: dict[int, tuple[Convolution, torch.Tensor]] = {}  # by the id of a result
        self._active: dict[int, tuple[_CalledNorm, torch.Tensor]] = {}  # results of ReLUs, by their id
        self._norms: list[_CalledNorm] = []
        self._pools: list[tuple[str, TrainedPool]] = []
        self._open: dict[int, tuple[_CalledNorm, torch.Tensor]] = {}  # by the id of a tensor: what computed it

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._notes.forward = None
        result = func(*args, **kwargs)
        convolution, has_bias = self._notes.forward or (None, False)
        if convolution and not has_bias:
            self._convolved[id(result)] = convolution, result
        if isinstance(result, torch.Tensor):
            for one in tree_leaves((args, kwargs)):
                if id(one) in self._active:
                    self._active[id(one)][0].readers.append(convolution)
        if func is BATCH_NORM and is_trained(args, kwargs):
            computed_by, _ = self._convolved.get(id(args[0]), (None, None))
            self._norms.append(_CalledNorm(self._notes.path, args[0], computed_by))
            self._open[id(result)] = self._norms[-1], result
        elif func in MAX_POOLS and (pool := TrainedPool.of(args[0], *args[1:], **kwargs)):
            self._pools.append((self._notes.path, pool))
        elif func in ADDITIONS and len(args) == 2 and not kwargs:
            changes_another = func in IN_PLACE and id(args[0]) not in self._open
            found = [self._open.pop(id(one))[0] for one in args if id(one) in self._open]
            alike = all(isinstance(one, torch.Tensor) and one.shape == result.shape for one in args)
            if found and alike and not changes_another:
                first, *others = sorted(found, key=self._norms.index)
                first.is_joined = True
                for other in others:
                    other.added_to = first
                self._open[id(result)] = first, result
            else:
                self._note_readers(found)
        elif func in RELUS and id(argument := args[0] if args else kwargs["input"]) in self._open:
            norm, _ = self._open.pop(id(argument))
            norm.relu = JOINED_RELU if norm.is_joined else OWN_RELU
            self._active[id(result)] = norm, result
        elif isinstance(result, torch.Tensor) and func not in READERS:
            self._note_readers([self._open.pop(id(one))[0] for one in tree_leaves(args) if id(one) in self._open])
        return result

    def has_relu(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is the result of a ReLU behind a batch norm."""
        return id(tensor) in self._active

    def _note_readers(self, norms: Iterable[_CalledNorm]) -> None:
        for norm in norms:
            norm.is_read = True

    def fused(self) -> dict[str, Problem]:
        """Return the problems that are fused with a part of a batch norm, by name."""

        def found() -> Iterator[tuple[str, Problem | None]]:
            for one in self._norms:
                if one.is_ours and one.convolution:
                    yield f"{one.path or 'batch norm'} with its convolution", with_statistics(one.convolution)
                if one.added_to and one.is_ours and (block := TrainedNorm.of(one.added_to.x, JOINED_RELU)):
                    yield f"{one.path or 'batch norm'} in the normalization of the block", block.normalization_of_two
                if one.relu != NO_RELU and len(one.readers) <= MOST_GRADIENTS:
                    for reader in filter(None, one.readers):
                        sums = with_gradient_sums(reader, one.relu, len(one.readers))
                        yield f"{one.path or 'batch norm'} gradient sums with the gradient", sums

        return numbered((name, problem) for name, problem in found() if problem)

    def named(self) -> dict[str, Problem]:
        """Return the problems by name."""
        norms = [(one.path or "batch norm", TrainedNorm.of(one.x, one.relu)) for one in self._norms if one.is_ours]
        pools = [(path or "max pool", pool) for path, pool in self._pools]
        return numbered(
            (f"{path} {what}", problem)
            for path, one in (*norms, *pools)
            if one
            for what, problem in one.problems.items()
        )


@dataclass(eq=False)
class _CalledConvolution:
    """A call of a convolution: its result, its path, its problem with a ReLU, and how often the result is read."""

    result: torch.Tensor
    path: str
    with_relu: Problem | None
    reads: int = 0


@dataclass(eq=False)
class _CalledRelu:
    """A call of a ReLU that is not a batch norm's, and what computes its argument and reads its result."""

    result: torch.Tensor
    convolution: _CalledConvolution | None = None
    readers: list[tuple[str, Convolution | None]] = field(default_factory=list)  # None for what is no convolution


class ReluNotes(TorchFunctionMode):
    """Notes the ReLUs behind and in front of convolutions.

    Args:
        notes: The notes of convolutions.
        norms: The notes of batch norms, which note the calls before this mode does.
    """

    def __init__(self, notes: ConvolutionNotes, norms: NormNotes) -> None:
        super().__init__()
        self._notes, self._norms = notes, norms
        self._convolved: dict[int, _CalledConvolution] = {}  # by the id of the result
        self._relus: dict[int, _CalledRelu] = {}  # likewise

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        problem, has_bias = self._notes.forward or (None, False)
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        for one in given:
            if id(one) in self._relus:
                self._relus[id(one)].readers.append((self._notes.path, problem))
            if id(one) in self._convolved:
                self._convolved[id(one)].reads += 1
        if problem:
            self._convolved[id(result)] = _CalledConvolution(result, self._notes.path, with_relu(problem, has_bias))
        elif func in RELUS and not self._norms.has_relu(result):
            # Of a ReLU in place, what reads the result later does not read the convolution.
            found = self._convolved.pop if given[0] is result else self._convolved.get
            self._relus[id(result)] = _CalledRelu(result, found(id(given[0]), None))
        return result

    def fused(self) -> dict[str, Problem]:
        """Return the problems that are fused with a ReLU, by name."""

        def found() -> Iterator[tuple[str, Problem | None]]:
            for one in self._relus.values():
                if (made := one.convolution) and made.reads == 1:
                    yield f"{made.path or 'convolution'} with its ReLU", made.with_relu
                if len(one.readers) == 1 and (reader := one.readers[0][1]):
                    yield f"{one.readers[0][0] or 'convolution'} by input with the ReLU's mask", with_mask(reader)

        return numbered((name, problem) for name, problem in found() if problem)
