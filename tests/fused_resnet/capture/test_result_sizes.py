"""The sizes of what operators return, against the operators themselves."""

import itertools

import pytest
import torch

from fused_resnet.capture.meta_recorder import meta
from fused_resnet.capture.result_sizes import META, result

aten = torch.ops.aten
X = (2, 6, 9, 8)
CASES = [
    *((aten.conv2d.default, (X, (4, 6, 3, 2), bias, *rest)) for bias in (None, (4,)) for rest in (
        (), ([2],), ([2, 1], [1, 0]), ([1, 1], [2, 1], [2, 3]))),
    (aten.conv2d.default, (X, (6, 2, 1, 1), None, [1, 1], [0, 0], [1, 1], 3)),
    (aten.conv2d.default, (X, (6, 1, 3, 3), (6,), [1, 1], [1, 1], [1, 1], 6)),
    (aten.conv2d.default, (X, (12, 3, 3, 2), None, [2, 1], [1, 1], [2, 1], 2)),
    *((aten.conv_transpose2d.input, (X, (6, 4, 3, 2), bias, *rest)) for bias in (None, (4,)) for rest in (
        (), ([2, 2],), ([2, 3], [1, 0], [1, 2]), ([1, 1], [2, 1], [0, 0], 1, [2, 3]))),
    (aten.conv_transpose2d.input, (X, (6, 1, 2, 2), (6,), [2, 2], [0, 0], [0, 0], 6)),
    (aten.linear.default, ((2, 5, 6), (3, 6), (3,))),
    (aten.linear.default, ((6,), (3, 6))),
    (aten.linear.default, (X, (3, 8), (3,))),
    (aten.batch_norm.default, (X, (6,), (6,), (6,), (6,), False, 0.1, 1e-5, True)),
    (aten.batch_norm.default, (X, (6,), (6,), None, None, True, 0.1, 1e-5, True)),
    *((pool, (X, *rest)) for pool in (aten.avg_pool2d.default, aten.max_pool2d.default) for rest in (
        ([3, 3],), ([3, 2], [2, 2]), ([3, 3], [2, 1], [1, 1]))),
    (aten.max_pool2d.default, (X, [3, 2], [1, 2], [1, 0], [2, 3])),
    *((aten.max_pool2d.default, (X, [3, 3], stride, padding, dilation, True)) for stride in ([], [2, 2], [5, 3])
        for padding in ([0, 0], [1, 1]) for dilation in ([1, 1], [2, 1])),
    *((aten.avg_pool2d.default, (X, size, stride, padding, True)) for size in ([2, 2], [3, 2]) for stride in (
        [], [2, 3], [4, 5]) for padding in ([0, 0], [1, 1])),
    (aten.adaptive_avg_pool2d.default, (X, [2, 3])),
    (aten.mean.dim, (X, [2, 3])),
    (aten.mean.dim, (X, [-1, 1], True)),
    (aten.mean.dim, (X, None)),
    *((one.Tensor, pair) for one in (aten.add, aten.sub, aten.mul, aten.div) for pair in (
        (X, X), (X, (6, 1, 1)), ((1,), X), (X, 2.0), ((2, 1, 9, 1), (6, 1, 8)))),
    *((one.default, (X,)) for one in (aten.relu, aten.sigmoid, aten.silu, aten.hardswish, aten.relu6, aten.hardsigmoid,
        aten.gelu, aten.tanh, aten.relu_, aten.silu_, aten.hardswish_, aten.relu6_)),
    *((one.default, (X, 0.0, 6.0)) for one in (aten.hardtanh, aten.hardtanh_)),
    *((one.Tensor, (X, X)) for one in (aten.add_, aten.mul_)),
    *((aten.cat.default, ([X, (2, 3, 9, 8), X], dim)) for dim in (1, -3)),
]  # fmt: skip
WRONG = [
    (aten.conv2d.default, (X, (4, 5, 3, 3))),
    (aten.conv2d.default, (X, (4, 6, 11, 3))),
    (aten.conv_transpose2d.input, (X, (5, 4, 3, 3))),
    (aten.conv_transpose2d.input, (X, (6, 4, 3, 3), None, [2, 2], [1, 1], [2, 1])),
    (aten.conv_transpose2d.input, (X, (6, 4, 3, 3), None, [1, 1], [9, 9])),
    (aten.linear.default, ((2, 5), (3, 6))),
    (aten.batch_norm.default, (X, (5,), (5,), (5,), (5,), False, 0.1, 1e-5, True)),
    (aten.mean.dim, (X, [4])),
    (aten.add.Tensor, (X, (2, 6, 3, 8))),
    (aten.cat.default, ([X, (2, 3, 9, 7)], 1)),
]


def on(device, value):
    """Shapes as tensors."""
    if isinstance(value, tuple) and value and all(type(one) is int for one in value):
        return torch.rand(value).to(device)
    return (
        [on(device, one) for one in value]
        if value and isinstance(value, list) and isinstance(value[0], tuple)
        else value
    )


@pytest.mark.parametrize(("operator", "args"), CASES, ids=lambda one: str(one).removeprefix("aten."))
def test_sizes_are_those_of_the_operator(operator, args):
    expected = operator(*(on("cpu", one) for one in args))
    given = [on(META, one) for one in args]
    found = result(operator, given, {})
    assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert found.device == META and (found is given[0]) == operator._schema.is_mutable


@pytest.mark.parametrize("last", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(("operator", "args"), CASES, ids=lambda one: str(one).removeprefix("aten."))
def test_a_known_result_has_the_operators_order_in_memory(operator, args, last):
    """Arguments with four dimensions are channels last, those at even and at odd places."""

    def ordered(value, i):
        is_last = isinstance(value, torch.Tensor) and value.dim() == 4 and last[i % 2]
        return value.contiguous(memory_format=torch.channels_last) if is_last else value

    given = [on("cpu", one) for one in args]
    real = [
        [ordered(one, j) for j, one in enumerate(value)] if isinstance(value, list) else ordered(value, i)
        for i, value in enumerate(given)
    ]
    traced = torch.utils._pytree.tree_map(lambda one: meta(one) if isinstance(one, torch.Tensor) else one, real)
    found = result(operator, traced, {})
    expected = operator(*real)
    assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)


VIEWS = {
    "permuted": lambda n, c, h, w: torch.rand(h, w, c, n).permute(3, 2, 0, 1),
    "transposed": lambda n, c, h, w: torch.rand(n, c, w, h).transpose(2, 3),
    "channels last": lambda n, c, h, w: torch.rand(n, h, w, c).permute(0, 3, 1, 2),
    "part of channels last": lambda n, c, h, w: torch.rand(n, h + 1, w, 2 * c).permute(0, 3, 1, 2)[:, :c, 1:],
    "each second channel": lambda n, c, h, w: torch.rand(n, h, w, 2 * c).permute(0, 3, 1, 2)[:, ::2],
    "part of rows": lambda n, c, h, w: torch.rand(n, c, h, w + 3)[..., 3:],
    "expanded batch": lambda n, c, h, w: torch.rand(1, c, h, w).expand(n, c, h, w),
    "expanded channels": lambda n, c, h, w: torch.rand(n, 1, h, w).expand(n, c, h, w),
}


@pytest.mark.parametrize("size", [(2, 6, 9, 8), (1, 6, 9, 8), (2, 6, 3, 1), (1, 6, 1, 1)], ids=str)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("operator", [aten.conv2d.default, aten.conv_transpose2d.input], ids=str)
def test_a_convolution_of_any_strides_has_the_operators_order_in_memory(operator, last, view, size):
    order = torch.channels_last if last else torch.contiguous_format
    given = [view(*size), torch.rand(6, 6, 3, 3).contiguous(memory_format=order), None, [1, 1], [1, 1]]
    expected, found = (
        operator(*given),
        result(operator, [meta(one) if isinstance(one, torch.Tensor) else one for one in given], {}),
    )
    assert (found.shape, found.stride()) == (expected.shape, expected.stride())


@pytest.mark.parametrize(("operator", "args"), WRONG, ids=lambda one: str(one).removeprefix("aten."))
def test_what_an_operator_does_not_take_is_refused(operator, args):
    for device in ("cpu", META):
        with pytest.raises(Exception):  # noqa: B017
            result(operator, [on(device, one) for one in args], {})


@pytest.mark.parametrize(
    "dtypes", list(itertools.permutations([torch.float32, torch.float16, torch.int64], 2)), ids=str
)
def test_tensors_of_several_dtypes_follow_torchs_rules(dtypes):
    real = aten.add.Tensor(*(torch.ones(2, 3, dtype=one) for one in dtypes))
    found = result(aten.add.Tensor, [torch.empty(2, 3, dtype=one, device=META) for one in dtypes], {})
    assert (found.shape, found.dtype) == (real.shape, real.dtype)
