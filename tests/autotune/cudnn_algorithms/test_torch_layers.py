"""cuDNN algorithms for the layers of a torch module."""

import pytest
import torch
from torch import nn

from autotune.core import LibraryError, UnknownNameError
from autotune.cudnn_algorithms import torch_layers as public
from autotune.cudnn_algorithms.benchmark import list_algorithms
from autotune.ir import parse
from autotune.libraries.cudnn import classic

CPU = torch.device("cpu")


without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"conv_fwd_algo": 8}, ["forward algorithm 8", "0 IMPLICIT_GEMM", "7 WINOGRAD_NONFUSED"]),
        ({"conv_bwd_data_algo": 6}, ["backward-data algorithm 6", "5 WINOGRAD_NONFUSED"]),
        ({"conv_bwd_filter_algo": -1}, ["backward-filter algorithm -1", "6 FFT_TILING"]),
        ({"conv_fwd_algo": "IMPLICIT_GEMM"}, ["forward algorithm 'IMPLICIT_GEMM'", "0 IMPLICIT_GEMM", "'eng41'"]),
        ({"conv_fwd_algo": "8"}, ["forward algorithm '8'", "7 WINOGRAD_NONFUSED"]),
        ({"conv_fwd_algo": True}, ["forward algorithm True", "0 IMPLICIT_GEMM"]),
        ({"prefer": "luck"}, ["luck", "time, workspace, energy"]),
        ({"conv_fwd_algo": 1, "workspace_limit": -5}, ["-5"]),
        ({}, ["no pass has a requirement"]),
    ],
)
def test_a_choice_that_no_layer_could_have_is_refused_at_once(choice, words):
    with pytest.raises((LibraryError, UnknownNameError)) as raised, public.use(nn.Conv2d(3, 4, 3), **choice):
        pass
    assert all(word in str(raised.value) for word in words) and "\n" not in str(raised.value)


def model():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1)), nn.Flatten())


def test_layers_are_found_by_pattern():
    assert list(public.convolutions(model())) == ["0", "1.1"]
    assert list(public.convolutions(model(), "1.*")) == ["1.1"]
    assert list(public.convolutions(nn.Conv2d(1, 1, 1))) == [""]
    with pytest.raises(UnknownNameError, match=r"no convolution is called 'layer9\.\*': there are 0, 1\.1"):
        public.convolutions(model(), "layer9.*")
    with pytest.raises(UnknownNameError, match=r"no nn\.Conv2d"):
        public.convolutions(nn.Sequential(nn.ReLU()))


@without_gpu
def test_without_a_gpu_nothing_is_chosen_and_the_model_is_as_before():
    network = model()
    x = torch.randn(2, 3, 8, 8)
    before = network(x)
    with pytest.raises(LibraryError, match="NVIDIA GPU"), public.use(network, conv_fwd_algo=1):
        pass
    with pytest.raises(LibraryError, match="NVIDIA GPU"):
        public.wrap(network, conv_fwd_algo=1)
    assert type(network[0]) is nn.Conv2d and "forward" not in vars(network[0])
    assert torch.equal(network(x), before)
    with pytest.raises(LibraryError, match="the input is on cpu"):
        public.Conv2d.from_module(network[0], conv_fwd_algo=1)(x)
    if not torch.backends.cudnn.is_available():
        with pytest.raises(LibraryError, match="torch has no cuDNN here"):
            classic.load()
    with pytest.raises(LibraryError, match="NVIDIA GPU"):
        list_algorithms(parse("conv2d n=1 h=4 w=4 c=8 k=8 dtype=f16"), CPU)


def test_a_layer_that_takes_anothers_place_shares_its_parameters():
    layer = nn.Conv2d(4, 6, (3, 1), stride=2, padding="valid", dilation=2, groups=2, bias=False).eval()
    made = public.Conv2d.from_module(layer, deterministic=True)
    assert made.weight is layer.weight and made.bias is None and not made.training
    assert list(made.state_dict()) == list(layer.state_dict())
    same = ("stride", "padding", "dilation", "groups", "kernel_size", "padding_mode")
    assert [getattr(made, name) for name in same] == [getattr(layer, name) for name in same]
    assert made.requirements.deterministic and made.requirements.any_pass


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": "same"},
        {"kernel_size": (4, 3), "padding": "same", "dilation": (1, 2)},
        {"kernel_size": 5, "padding": (1, 2), "stride": (2, 1), "groups": 2},
        {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
        {"kernel_size": (2, 3), "padding": "valid", "dilation": 2},
    ],
)
def test_a_layers_problem_is_what_torch_computes(options):
    layer, x = nn.Conv2d(4, 6, **options, bias=False), torch.randn(3, 4, 11, 13)
    problem = public.problem(layer, x)
    padded, pad = public._padded(layer, x)
    assert problem.pad == pad and (problem.h, problem.w) == padded.shape[2:]
    y = torch.nn.functional.conv2d(padded, layer.weight, None, layer.stride, pad, layer.dilation, layer.groups)
    assert torch.equal(y, layer(x))
    assert (problem.n, problem.k, problem.p, problem.q) == y.shape
