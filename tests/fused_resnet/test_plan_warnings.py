"""Warnings when a plan is bound: they name what the database is tuned for, and advise only what is possible."""

import warnings

import pytest
import torch
from torch import nn

from autotune.core import device_name
from fused_resnet import FusedResNet
from tuning_db import Store

HERE = device_name(torch.device("cpu"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tuned.db"


def said(path, x, devices=(), plans=(), **options):
    """Return the warning of a call with x on a database of these devices, the last of which has these plans."""
    with Store.create(path) as store:
        rows = [store.put_device(name, "sm_90", flops_per_us=1.0, bytes_per_us=1.0) for name in devices]
        for network in plans:
            store.put_plan(device_id=rows[-1].id, network=network, median_us=1.0, spread_us=0.0, choices=[])
    model = nn.Sequential(nn.Conv2d(x.shape[1], 8, 3), nn.ReLU()).to(x.dtype).eval()
    network = FusedResNet.from_model(model, path, **options)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        assert network(x).shape == model(x).shape
    [message] = [str(one.message) for one in caught]
    return message


def test_other_sizes_of_images_are_told_apart(path):
    plans = ["Sequential n=4 input=3x64x64 dtype=f32 aa", "Other n=4 input=3x32x32 dtype=f32 bb"]
    message = said(path, torch.randn(4, 3, 32, 32), ["a GPU", HERE], plans)
    assert f"is not tuned for batch 4 (3x32x32) of Sequential in torch.float32 on this device, {HERE}: " in message
    assert "; it has plans for n=4 input=3x64x64 dtype=f32; " in message
    assert message.endswith("`autotune tune --batch 4 --input 3,32,32`")


def test_many_plans_are_counted(path):
    plans = [f"Sequential n={n} input=3x64x64 dtype=f32 aa" for n in range(1, 6)]
    message = said(path, torch.randn(4, 3, 32, 32), [HERE], plans)
    listed = ", ".join(f"n={n} input=3x64x64 dtype=f32" for n in (5, 4, 3))
    assert f"; it has plans for {listed} and 2 more; " in message


def test_a_database_of_other_devices_names_them(path):
    message = said(path, torch.randn(4, 3, 32, 32), ["NVIDIA H200", "a CPU, 8 threads"])
    assert f"on this device, {HERE}: " in message and "; it is tuned for NVIDIA H200 and a CPU, 8 threads; " in message


def test_an_empty_database_has_no_device(path):
    assert "; it holds no device; " in said(path, torch.randn(4, 3, 32, 32))


@pytest.mark.parametrize(
    ("dtype", "options", "remedy"),
    [
        (torch.float32, {"precision": "tf32"}, "no kernels in tf32 exist for this device: leave out precision='tf32'"),
        (torch.bfloat16, {}, "no kernels in bf16 exist for this device: choose another dtype"),
    ],
)
def test_what_the_tuner_would_refuse_is_not_advised(path, dtype, options, remedy):
    message = said(path, torch.randn(4, 3, 32, 32, dtype=dtype), **options)
    assert message.endswith(f"; {remedy}") and "autotune tune" not in message
