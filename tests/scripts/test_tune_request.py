"""Requests of `autotune tune` that cannot be tuned."""

import re

import pytest
from tune_arguments import requested

from autotune.core import AutotuneError
from autotune_cli import main

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--precision", "tf32"], "cpu has no kernels in tf32: choose no --precision or int8 or fp8"),
        (["--train", "--model", "unet", "--precision", "fp8"], "--precision fp8 is for inference, not for --train"),
        (["--precision", "int8", "--problem", "conv2d n=1"], "--precision: these options are for a network"),
        (["--train", "--problem", "conv2d n=1"], "--train: these options are for a network"),
        (["--train", "--model", "unet", "--precision", "tf32"], "cpu has no kernels in tf32"),
        (["--dtype", "f16"], "cpu has no kernels in f16: choose f32"),
        (["--sizes", "8x8", "--problem", "conv2d n=1"], "--sizes: these options are for a network"),
    ],
    ids=[
        "tf32",
        "step in fp8",
        "problem",
        "problem of a step",
        "step in tf32",
        "f16",
        "sizes of a problem",
    ],
)
def test_the_tuner_says_what_it_cannot_tune(arguments, said):
    with pytest.raises(AutotuneError, match=re.escape(said)) as caught:
        requested(*arguments)
    assert "s8" not in str(caught.value).removeprefix("--dtype s8") and "e4m3" not in str(caught.value)


def test_an_old_gpu_has_no_kernels_in_e4m3():
    with pytest.raises(AutotuneError, match=r"sm80 has no kernels in e4m3: choose no --precision or tf32 or int8$"):
        requested("--precision", "fp8", arch="sm80")
    (request,) = requested("--model", "unet", "--input", "3,64,64", "--batch", "2", "--precision", "fp8", arch="sm90")
    assert request.title == "unet, batch 2, f16, fp8"
    assert {problem.dtype for _, problem in request.named} == {"f16", "e4m3"}


def test_a_training_step_is_requested_once_for_each_batch_size():
    first, second = requested("--train", "--batch", "1,3")
    assert first.is_step and first.network is None and first.name == "se_resnet9_fixup"
    assert first.title == "se_resnet9_fixup, training step at batch 1, f32"
    assert [problem.n for _, problem in second.named] == [3] * len(first.named)
    names = [name for name, _ in second.named]
    assert all(name.endswith(", batch 3") for name in names) and len(set(names)) == len(names)
    operators = {problem.operator for _, problem in second.named}
    assert operators == {"conv2d", "conv2d_dgrad", "conv2d_wgrad", "relu_gradient_sums", "global_avg_pool2d"}


def test_a_network_is_requested_once_for_each_image_size_and_batch_size():
    found = requested("--model", "unet", "--input", "3,64,64", "--sizes", "32x64,64x96", "--batch", "1,2")
    assert [one.title for one in found] == [
        f"unet, batch {n}, {size}, f32" for size in ("32x64", "64x96") for n in (1, 2)
    ]
    assert [one.network.inputs[0].shape for one in found] == [(n, 3, *s) for s in ((32, 64), (64, 96)) for n in (1, 2)]


@pytest.mark.parametrize("text", ["32", "32x", "0x8", "axb", "8x8x8"])
def test_image_sizes_are_pairs_of_numbers(text, capsys):
    with pytest.raises(SystemExit):
        requested("--model", "unet", "--sizes", text)
    assert "--sizes" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["tune", "bench", "profile"])
def test_a_dtype_is_that_of_a_networks_tensors_in_every_command(command, capsys):
    with pytest.raises(SystemExit):
        main.run_command(command, ["--dtype", "s8"], "autotune")
    assert "invalid choice: 's8'" in capsys.readouterr().err


def test_a_device_and_a_target_that_exclude_each_other(capsys):
    assert main.run_command("tune", ["--device", "cpu", "--arch", "sm80"], "autotune tune") == 2
    assert "--device cpu and --arch sm80 exclude each other" in capsys.readouterr().err
