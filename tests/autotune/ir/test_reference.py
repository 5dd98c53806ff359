"""The bound of what tensor cores lose in sums of e4m3, against sums that are added as they add."""

import pytest
import torch

from autotune.ir import E4M3, parse, sum_error


def added(products: torch.Tensor, steps: int) -> torch.Tensor:
    """Add products (sums, steps, 32) as tensor cores do; float64 takes over a sum after each `steps` steps."""
    whole, part = torch.zeros(2, len(products), dtype=torch.float64)
    for step in range(products.shape[1]):
        if step % steps == 0:
            whole, part = whole + part, torch.zeros_like(part)
        terms = torch.cat([part[:, None], products[:, step]], 1)
        unit = torch.exp2(terms.abs().amax(1, keepdim=True).log2().floor() - 13)  # 14 bits of the largest
        part = (torch.trunc(terms / unit) * unit).sum(1)
    return whole + part


@pytest.mark.parametrize(("steps", "promote"), [(1, 0), (2, 0), (4, 0), (18, 0), (72, 0), (72, 1), (72, 2), (64, 4)])
def test_sums_are_within_their_bound(steps, promote):
    generator = torch.Generator().manual_seed(steps)
    drawn = torch.randn(2, 3000, steps, 32, generator=generator, dtype=torch.float64) * 64
    products = E4M3.rounded(drawn[0]) * E4M3.rounded(drawn[1])
    exact = products.sum((1, 2))
    tile_k = 128
    found = added(products, promote * tile_k // 32 or steps)
    error = float(((found - exact).abs() / (exact.abs() + exact.square().mean().sqrt())).max())
    problem = parse(f"gemm m=1 n=1 k={32 * steps} dtype=e4m3")
    bound = sum_error(problem, {"promote": promote, "tile_k": tile_k, "slices": 1})
    assert bound / 90 < error < 0.35 * bound


def test_the_largest_error_of_many_sums_is_within_their_bound():
    """A layer has up to 10^8 sums, and their largest error grows with their number."""
    generator = torch.Generator().manual_seed(0)
    errors = []
    for _ in range(10):
        drawn = torch.randn(2, 40000, 2, 32, generator=generator, dtype=torch.float64) * 64
        products = E4M3.rounded(drawn[0]) * E4M3.rounded(drawn[1])
        exact = products.sum((1, 2))
        error = (added(products, 2) - exact).abs() / (exact.abs() + exact.square().mean().sqrt())
        errors.append(float(error.max()))
    bound = sum_error(parse("gemm m=1 n=1 k=64 dtype=e4m3"), {"promote": 0, "tile_k": 128, "slices": 1})
    assert 1.2 * min(errors) < max(errors) < 0.4 * bound


def test_other_kernels_have_exact_sums():
    config = {"promote": 0, "tile_k": 128}
    assert (
        sum_error(parse("gemm m=1 n=1 k=64 dtype=f16"), config)
        == 0
        != sum_error(parse("gemm m=1 n=1 k=64 dtype=e4m3"), config)
    )
    assert sum_error(parse("gemm m=1 n=1 k=64 dtype=e4m3"), {"tile_k": 128}) == 0
