"""Promises of `KeepingKernels`: outputs in memory that stays, whatever their sizes."""

from __future__ import annotations

import torch

from ringcast.gpu.kernels import CpuKernels, KeepingKernels


def test_outputs_share_the_memory_of_the_largest() -> None:
    kernels = KeepingKernels(CpuKernels(1))
    large = kernels.empty((4, 10), torch.float32)
    small = kernels.empty((3, 10), torch.float32)
    assert small.shape == (3, 10)
    assert small.dtype == torch.float32
    assert small.data_ptr() == large.data_ptr() == kernels.empty((40,), torch.float32).data_ptr()


def test_results_are_those_of_other_kernels() -> None:
    plain = CpuKernels(1)
    kernels, weight = KeepingKernels(plain), torch.rand(64)
    for rows in (5, 2, 7):
        x = torch.randn(rows, 64)
        assert torch.equal(kernels.norm(x, weight, 1e-5, torch.float32), plain.norm(x, weight, 1e-5, torch.float32))
