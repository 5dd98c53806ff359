"""Any process finds the code that Inductor compiled in torch's cache of compiled graphs."""

import pytest
import torch
from comparison import relative_error
from torch import nn
from torch._dynamo.utils import counters

from autotune.libraries.inductor_cache import cached_compilation
from fused_resnet import FusedResNet

pytestmark = pytest.mark.filterwarnings("ignore:.*is not tuned", "ignore:.*LeafSpec", "ignore::DeprecationWarning")


def model(seed):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 9, 3, stride=2), nn.SiLU()]
    made = nn.Sequential(*layers, nn.Flatten(), nn.Linear(9 * 25, 10)).eval()  # torch's key has up to 8 numbers as such
    nn.init.uniform_(made[1].running_var, 0.5, 2.0)
    return made


@pytest.mark.compile
@torch.no_grad()
def test_a_network_with_other_weights_is_not_compiled_again(empty_db, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x = torch.randn(2, 3, 12, 12)
    found, networks = [], []
    for plain in (model(0), model(1)):
        counters.clear()
        networks.append((plain, FusedResNet.from_model(plain, empty_db, compile=True)))
        networks[-1][1](x)
        found.append({name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss", "bypass")})
    assert found == [{"hit": 0, "miss": 1, "bypass": 0}, {"hit": 1, "miss": 0, "bypass": 0}]
    for plain, network in networks:
        assert [row.kernel.split()[0] for row in network.explain(x)] == ["inductor"]
        assert relative_error(network(x), plain.double()(x.double())) < 1e-5


def test_torchs_own_compilations_are_as_they_were():
    from torch._inductor import codecache

    owners = [codecache.FxGraphCachePickler, getattr(codecache, "CacheabilityValidator", object)]
    before = [dict(vars(owner)) for owner in owners]
    with pytest.raises(KeyError), cached_compilation():
        assert [dict(vars(owner)) for owner in owners] != before
        raise KeyError
    assert [dict(vars(owner)) for owner in owners] == before
    assert torch._guards.TracingContext.try_get() is None
