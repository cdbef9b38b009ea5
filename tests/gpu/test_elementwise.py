"""Norms and soft-caps equal their formulas on every instruction set; wrong tensors never reach native code."""

from __future__ import annotations

import pytest
import torch
from test_attention import LEVELS_HERE

from ringcast.gpu.kernels import CpuKernels

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
SIZES = pytest.mark.parametrize("size", [1, 15, 16, 576, 1000])


@pytest.mark.parametrize("level", LEVELS_HERE)
@DTYPES
@SIZES
def test_norm_scales_rows(level: str, dtype: torch.dtype, size: int) -> None:
    x, weight = torch.randn(70, size), torch.randn(size)
    before = x.clone()
    out = CpuKernels(2, level).norm(x, weight, 1e-5, dtype)
    assert torch.equal(x, before)
    torch.testing.assert_close(
        out, normed(x, weight).to(dtype), rtol=1e-5 if dtype is torch.float32 else 8e-3, atol=1e-6
    )


@pytest.mark.parametrize("level", LEVELS_HERE)
@SIZES
def test_a_norm_can_be_added_to_the_stream(level: str, size: int) -> None:
    x, weight, before = torch.randn(70, size), torch.randn(size), torch.randn(70, size)
    residual = before.clone()
    kernels = CpuKernels(2, level)
    kernels.norm_add(residual, x, weight, 1e-5)
    torch.testing.assert_close(residual.double(), before + normed(x, weight), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", LEVELS_HERE)
def test_a_row_is_normed_alike_in_any_company(level: str) -> None:
    x, weight = torch.randn(70, 576), torch.randn(576)
    whole = CpuKernels(3, level).norm(x, weight, 1e-5, torch.float32)
    assert torch.equal(CpuKernels(1, level).norm(x[33:34].clone(), weight, 1e-5, torch.float32)[0], whole[33])


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The formula, in float64."""
    exact = x.double()
    return exact * torch.rsqrt(exact.square().mean(1, keepdim=True) + 1e-5) * weight.double()


@pytest.mark.parametrize("level", LEVELS_HERE)
def test_softcap_bends_values_by_tanh(level: str) -> None:
    values = torch.cat([torch.linspace(-300, 300, 2001), torch.logspace(-10, 0, 100), torch.zeros(2)]).reshape(1, -1)
    for cap in (0.3, 30.0):
        bent = values.clone()
        CpuKernels(2, level).softcap(bent, cap)
        torch.testing.assert_close(bent.double(), cap * (values.double() / cap).tanh(), rtol=5e-7, atol=0)


@pytest.mark.parametrize("level", LEVELS_HERE)
def test_rounding_to_bfloat16_is_that_of_torch(level: str) -> None:
    values = torch.randn(1, 4096) * torch.logspace(-12, 12, 4096)
    kernels = CpuKernels(1, level)
    exact = kernels.norm(values, torch.ones(4096), 0.0, torch.float32)
    rounded = kernels.norm(values, torch.ones(4096), 0.0, torch.bfloat16)
    assert rounded.isfinite().all()
    assert torch.equal(rounded, exact.bfloat16())


@pytest.mark.parametrize("level", LEVELS_HERE)
def test_nan_stays_nan_in_bfloat16(level: str) -> None:
    x = torch.full((1, 40), float("nan"))
    assert CpuKernels(1, level).norm(x, torch.ones(40), 1e-5, torch.bfloat16).isnan().all()


def test_tensors_of_wrong_type_shape_or_layout_are_refused() -> None:
    kernels = CpuKernels(1)
    with pytest.raises(ValueError, match="weight is"):
        kernels.norm(torch.ones(2, 4), torch.ones(5), 1e-5, torch.float32)
    with pytest.raises(ValueError, match="x is"):
        kernels.norm(torch.ones(4, 2).t(), torch.ones(4), 1e-5, torch.float32)
    with pytest.raises(ValueError, match="x is torch.float16"):
        kernels.norm(torch.ones(2, 4, dtype=torch.float16), torch.ones(4), 1e-5, torch.float32)
    with pytest.raises(ValueError, match="residual is torch.bfloat16"):
        kernels.norm_add(torch.ones((2, 4), dtype=torch.bfloat16), torch.ones(2, 4), torch.ones(4), 1e-5)
