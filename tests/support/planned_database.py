"""A database with a plan of SE-ResNet9-Fixup on this CPU: the fastest kernel of each layer."""

import shutil
from pathlib import Path

import torch
from processes import TUNED_BATCH
from seed_network import fused, images

from autotune.core import device_name
from autotune.ir import network_text
from tuning_db import Store


def with_plan(tuned: Path, path: Path) -> Path:
    """Write a copy of the database of the fixture `tuned_db` that has a plan, and its network, and return its path."""
    shutil.copy(tuned, path)
    network = fused(path)._network(images(TUNED_BATCH))
    with Store.create(path) as store:
        device = store.device(device_name(torch.device("cpu")))
        assert device
        fastest = [(layer.name, store.ranking(device, str(layer.problem))[0]) for layer in network.layers]
        choices = [
            {"layer": name, "kernel": row.kernel_id, "launch": row.launch, "us": row.median_us, "overlap": True}
            for name, row in fastest
        ]
        store.put_network(network.key, network_text.write(network))
        store.put_plan(device_id=device.id, network=network.key, median_us=1.0, spread_us=0.0, choices=choices)
    return path
