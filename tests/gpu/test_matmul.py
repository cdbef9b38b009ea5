"""Products with packed weights equal the formula in every format and instruction set, bit for bit in any company."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from packed import FORMATS, activations, random_matrix
from test_attention import LEVELS_HERE
from torch import Tensor

from ringcast.gpu.kernels import CpuKernels
from ringcast.gpu.layers.linear import Embedding, GatedLinear, Linear
from ringcast.gpu.matmul_kernels import matmul
from ringcast.gpu.packed_matrix import PackedMatrix
from ringcast.gpu.packing import Packing

each_format = pytest.mark.parametrize("format_name", FORMATS)
each_level = pytest.mark.parametrize("level", LEVELS_HERE)
# Columns: whole groups, a last group of one, two and four panels, an unfilled panel, less than a panel.
SHAPES = [(128, 64), (144, 96), (203, 32), (64, 1536), (5, 64)]


def worst_error(out: Tensor, x: Tensor, values: Tensor) -> float:
    """The largest error, relative to the sum of the products' sizes: what float32 sums may lose."""
    exact = x.double() @ values.T
    return float(((out.double() - exact).abs() / (x.double().abs() @ values.abs().T)).max())


@each_level
@each_format
def test_it_equals_the_formula(format_name: str, level: str) -> None:
    for columns, depth in SHAPES:
        weight, values = random_matrix(format_name, columns, depth)
        x = activations(format_name, 33, depth)
        out = matmul(CpuKernels(2, level), x, weight, dtype=torch.float32)
        # Q4's offsets meet sums of x that cancel: the error is relative to what was added up.
        assert worst_error(out, x, values) < (2e-6 if format_name != "Q4" else 1e-5), (columns, depth)


@each_level
@each_format
def test_company_and_threads_change_no_bit(format_name: str, level: str) -> None:
    for columns, depth in ((203, 96), (576, 576)):
        weight, _ = random_matrix(format_name, columns, depth)
        x = activations(format_name, 64, depth)
        whole = matmul(CpuKernels(1, level), x, weight)
        for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 31, 32, 33, 50):
            for threads in (1, 2, 5):
                out = matmul(CpuKernels(threads, level), x[:rows].contiguous(), weight)
                assert torch.equal(out, whole[:rows]), (rows, threads)
        # A row on its own, from the middle of the batch.
        assert torch.equal(matmul(CpuKernels(2, level), x[40:41].contiguous(), weight)[0], whole[40])


@each_level
@each_format
def test_a_bias_is_added_to_the_sums(format_name: str, level: str) -> None:
    weight, _ = random_matrix(format_name, 203, 64)
    x, bias = activations(format_name, 9, 64), torch.randn(203)
    out = Linear(weight, CpuKernels(2, level), bias)(x, torch.float32)
    plain = Linear(weight, CpuKernels(2, level))(x, torch.float32)
    assert torch.equal(out, plain + bias)


@each_level
@each_format
def test_the_product_can_be_added_to_the_stream(format_name: str, level: str) -> None:
    weight, _ = random_matrix(format_name, 203, 64)
    linear = Linear(weight, CpuKernels(2, level), torch.randn(203))
    x, before = activations(format_name, 9, 64), torch.randn(9, 203)
    residual = before.clone()
    linear.add_to(residual, x)
    assert torch.equal(residual, before + linear(x, torch.float32))


@each_level
def test_sums_are_rounded_once_to_the_type_of_the_output(level: str) -> None:
    weight, _ = random_matrix("BF16", 203, 64)
    linear = Linear(weight, CpuKernels(2, level))
    x = activations("BF16", 9, 64)
    assert torch.equal(linear(x), linear(x, torch.float32).bfloat16())


@each_level
@each_format
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gates_meet_their_ups(format_name: str, level: str, activation: str) -> None:
    functions = {
        "silu": torch.nn.functional.silu,
        "gelu_tanh": lambda gate: torch.nn.functional.gelu(gate, approximate="tanh"),
    }
    for half in (100, 24, 1536):
        weight, values = random_matrix(format_name, 2 * half, 32, gated=True)
        x = activations(format_name, 9, 32)
        out = GatedLinear(weight, CpuKernels(2, level), activation)(x)
        gate, up = (x.double() @ values.T).split(half, dim=1)
        expected = functions[activation](gate) * up
        assert out.shape == (9, half)
        tolerance = 1e-5 if format_name == "F32" else 1e-2
        torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance * float(expected.std()))


@each_level
def test_gates_of_extreme_values_are_finite(level: str) -> None:
    gates = torch.tensor([-1e4, -100.0, -88.0, 0.0, 88.0, 1e4])
    x = torch.stack([gates, torch.ones(6)]).T.contiguous()  # the first item becomes the gate, the second the up
    packing = Packing("F32", 2, 2, gated=True)
    data = torch.zeros(2, 32)
    data[0, 0] = data[1, 16] = 1.0
    weight = PackedMatrix(data.view(torch.uint8).reshape(-1), packing)
    out = GatedLinear(weight, CpuKernels(1, level))(x)
    torch.testing.assert_close(out[:, 0], torch.tensor([0.0, 0.0, 0.0, 0.0, 88.0, 1e4]), rtol=1e-6, atol=1e-30)


@each_level
@each_format
def test_an_embedding_is_the_weights_rows(format_name: str, level: str) -> None:
    weight, values = random_matrix(format_name, 203, 96)
    ids = torch.randint(0, 203, (400,), generator=torch.Generator().manual_seed(0))
    out = Embedding(weight, CpuKernels(2, level), scale=3.0)(ids)
    torch.testing.assert_close(out.double(), 3.0 * values[ids], rtol=1e-6, atol=1e-7)


@each_level
def test_not_a_number_stays_in_its_row(level: str) -> None:
    for format_name in FORMATS:
        weight, _ = random_matrix(format_name, 144, 64)
        x = activations(format_name, 8, 64)
        expected = matmul(CpuKernels(2, level), x, weight)
        x[3, 17] = float("nan")
        out = matmul(CpuKernels(2, level), x, weight)
        assert out[3].isnan().all()
        assert torch.equal(out[[0, 1, 2, 4, 5, 6, 7]], expected[[0, 1, 2, 4, 5, 6, 7]])


def test_no_rows_give_no_output() -> None:
    weight, _ = random_matrix("Q4", 64, 32)
    assert matmul(CpuKernels(2), torch.empty((0, 32), dtype=torch.bfloat16), weight).shape == (0, 64)


def test_two_python_threads_may_multiply_at_the_same_time() -> None:
    weight, _ = random_matrix("BF16", 576, 576)
    x = activations("BF16", 33, 576)
    expected = matmul(CpuKernels(1), x, weight)
    wrong: list[int] = []

    def multiply() -> None:
        for repetition in range(200):
            if not torch.equal(matmul(CpuKernels(3), x, weight), expected):
                wrong.append(repetition)

    threads = [threading.Thread(target=multiply) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_process_goes_on_alone() -> None:
    script = (
        "import os, torch\n"
        "from packed import activations, random_matrix\n"
        "from ringcast.gpu.kernels import CpuKernels\n"
        "from ringcast.gpu.matmul_kernels import matmul\n"
        "weight, _ = random_matrix('BF16', 576, 576)\n"
        "x = activations('BF16', 33, 576)\n"
        "expected = matmul(CpuKernels(4), x, weight)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if (matmul(CpuKernels(4), x, weight) == expected).all() else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd="tests/gpu")
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


def test_tensors_of_wrong_type_shape_or_layout_are_refused() -> None:
    kernels = CpuKernels(1)
    weight, _ = random_matrix("BF16", 64, 32)
    with pytest.raises(ValueError, match="x is torch.float32"):
        matmul(kernels, torch.ones(2, 32), weight)
    with pytest.raises(ValueError, match=r"x is torch.bfloat16 \[2, 34\]"):
        matmul(kernels, torch.ones((2, 34), dtype=torch.bfloat16), weight)
    with pytest.raises(ValueError, match="strides"):
        matmul(kernels, torch.ones((32, 2), dtype=torch.bfloat16).T, weight)
    with pytest.raises(ValueError, match="bias is"):
        matmul(kernels, torch.ones((2, 32), dtype=torch.bfloat16), weight, torch.zeros(60))
    with pytest.raises(ValueError, match="residual is"):
        Linear(weight, kernels).add_to(torch.zeros(2, 60), torch.ones((2, 32), dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="not packed as gates"):
        GatedLinear(weight, kernels)(torch.ones((2, 32), dtype=torch.bfloat16))
    gated, _ = random_matrix("BF16", 64, 32, gated=True)
    with pytest.raises(ValueError, match="plain product has no use"):
        Linear(gated, kernels)(torch.ones((2, 32), dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="packed data is"):
        PackedMatrix(weight.data[:-1], weight.packing)
    with pytest.raises(ValueError, match="token_ids is"):
        Embedding(weight, kernels)(torch.zeros(3, dtype=torch.int32))
