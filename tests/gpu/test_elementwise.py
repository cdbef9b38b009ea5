"""Norm and gate equal their formulas on every instruction set; wrong tensors never reach native code."""

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
def test_norm_adds_the_residual_and_scales_rows(level: str, dtype: torch.dtype, size: int) -> None:
    delta, before = torch.randn(70, size).to(dtype), torch.randn(70, size)
    weight = torch.randn(size)
    residual = before.clone()
    out = CpuKernels(2, level).norm(delta, residual, weight, 1e-5, dtype)
    assert torch.equal(residual, before + delta.float())
    exact = residual.double()
    expected = exact * torch.rsqrt(exact.square().mean(1, keepdim=True) + 1e-5) * weight.double()
    torch.testing.assert_close(out, expected.to(dtype), rtol=1e-5 if dtype is torch.float32 else 8e-3, atol=1e-6)


def test_norm_without_a_delta_leaves_the_residual() -> None:
    before = torch.randn(3, 20)
    residual = before.clone()
    CpuKernels(1).norm(None, residual, torch.ones(20), 1e-5, torch.float32)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("level", LEVELS_HERE)
@DTYPES
@SIZES
def test_gate_is_silu_of_the_first_half_times_the_second(level: str, dtype: torch.dtype, size: int) -> None:
    gate_up = (torch.randn(50, 2 * size) * 8).to(dtype)
    out = CpuKernels(2, level).gate(gate_up)
    gate, up = gate_up.double().split(size, dim=1)
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(out, expected.to(dtype), rtol=2e-6 if dtype is torch.float32 else 8e-3, atol=1e-6)


def test_gate_of_extreme_values_is_finite() -> None:
    gate = torch.tensor([-1e4, -100.0, -88.0, 0.0, 88.0, 1e4])
    out = CpuKernels(1).gate(torch.cat([gate, torch.ones(6)]).unsqueeze(0))
    torch.testing.assert_close(out[0], torch.tensor([0.0, 0.0, 0.0, 0.0, 88.0, 1e4]), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("level", LEVELS_HERE)
@DTYPES
def test_gate_may_be_gelu_in_its_tanh_form(level: str, dtype: torch.dtype) -> None:
    gate_up = (torch.randn(50, 2 * 100) * 4).to(dtype)
    out = CpuKernels(2, level).gate(gate_up, "gelu_tanh")
    gate, up = gate_up.double().split(100, dim=1)
    expected = torch.nn.functional.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(out, expected.to(dtype), rtol=4e-6 if dtype is torch.float32 else 8e-3, atol=1e-6)


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
    exact = kernels.norm(None, values, torch.ones(4096), 0.0, torch.float32)
    rounded = kernels.norm(None, values, torch.ones(4096), 0.0, torch.bfloat16)
    assert rounded.isfinite().all()
    assert torch.equal(rounded, exact.bfloat16())


@pytest.mark.parametrize("level", LEVELS_HERE)
def test_nan_stays_nan_in_bfloat16(level: str) -> None:
    gate_up = torch.full((1, 40), float("nan"), dtype=torch.bfloat16)
    assert CpuKernels(1, level).gate(gate_up).isnan().all()


def test_tensors_of_wrong_type_shape_or_layout_are_refused() -> None:
    kernels = CpuKernels(1)
    with pytest.raises(ValueError, match="weight is"):
        kernels.norm(None, torch.ones(2, 4), torch.ones(5), 1e-5, torch.float32)
    with pytest.raises(ValueError, match="residual is"):
        kernels.norm(None, torch.ones(4, 2).t(), torch.ones(4), 1e-5, torch.float32)
    with pytest.raises(ValueError, match="gate_up is torch.float16"):
        kernels.gate(torch.ones(2, 4, dtype=torch.float16))
    with pytest.raises(ValueError, match="no two halves"):
        kernels.gate(torch.ones(2, 5))
