"""The compilers and the devices of a run on this machine."""

import pytest

from autotune.core import NEVER, DeviceKind, architecture
from autotune.measure import Timing
from autotune.tuner import DeviceGroup, MeasuringDevice, TuningTarget, cores_apart

GPU, CPU = DeviceKind("NVIDIA H200", 90, 132), DeviceKind("a CPU", None, 16)


def group(arch, kind, names):
    return DeviceGroup(TuningTarget.of(architecture(arch), kind), [MeasuringDevice(kind, name) for name in names])


@pytest.mark.parametrize(
    ("groups", "cores", "measuring", "compiling"),
    [
        ([("sm90", GPU, ["cuda:0"])], range(16), [(15,)], range(15)),
        ([("sm90", GPU, ["cuda:0", "cuda:1"])], range(3, 32), [(30,), (31,)], range(3, 30)),
        ([("sm90", GPU, ["cuda:0"]), ("sm90", GPU, ["cuda:1"])], range(32), [(30,), (31,)], range(30)),
        ([("sm90", GPU, ["cuda:0", "cuda:1"])], range(15), [(), ()], range(15)),
        ([("sm90", GPU, [])], range(16), [], range(16)),
        ([("cpu", CPU, ["cpu"])], range(16), [()], range(16)),
    ],
    ids=["one GPU", "two", "two kinds", "too few cores", "none", "a CPU"],
)
def test_each_gpu_has_a_core_that_compilers_leave_alone(groups, cores, measuring, compiling):
    found, left = cores_apart([group(*one) for one in groups], list(cores))
    assert [device.cores for one in found for device in one.devices] == measuring
    assert list(left) == list(compiling)
    for one in found:
        assert len(one.workers(Timing(), NEVER)) == len(one.devices)
