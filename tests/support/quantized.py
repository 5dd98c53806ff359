"""Scales, inputs and layers of networks in 8-bit formats."""

from collections import defaultdict

from architectures import images

from autotune.ir import S8
from fused_resnet.quantization import capture_bytes

ANY = defaultdict(lambda: 1.0)
"""Scales where none matters."""
SEEN = [images(4, seed=seed) for seed in (11, 12)]


def layers_of(model, x=None, scales=ANY, form=S8):
    shape = tuple((images(2) if x is None else x).shape)
    return {layer.name: layer for layer in capture_bytes(model, shape, "f32", scales, form).layers}
