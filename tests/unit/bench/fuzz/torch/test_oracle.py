"""Samples of PyTorch's operators: exact ones agree, those that round do not; a change in place reaches its tensor."""

import contextlib

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from bench.fuzz.oracle import NUM_SAMPLES, Noise
from bench.fuzz.torch.oracle import Sampling, UndefinedError, as_array, as_tensor

X = torch.linspace(-2, 2, 24, dtype=torch.float64).reshape(4, 6).float().double()


def samples(function):
    found = []
    for sample in range(NUM_SAMPLES):
        mode = Sampling(Noise(sample, 1), "float32")
        with mode, torch.no_grad():
            result = function(X.clone())
        found.append(as_array(result))
    return np.stack(found), mode


@pytest.mark.parametrize(
    ("function", "is_exact"),
    [
        (lambda x: x.t().reshape(-1)[2:], True),
        (lambda x: torch.relu(x).amax(1), True),
        (lambda x: torch.cat([x, x.flip(0)]), True),
        (torch.exp, False),
        (lambda x: x.sum(0), False),
        (lambda x: torch.nn.functional.linear(x[0], x), False),
    ],
)
def test_what_rounds(function, is_exact):
    stack, mode = samples(function)
    assert mode.is_exact == is_exact
    assert (stack == stack[0]).all() == is_exact
    np.testing.assert_allclose(stack, np.broadcast_to(as_array(function(X.clone())), stack.shape), rtol=1e-4, atol=1e-5)


def test_changes_in_place_are_seen():
    def changed(x):
        row = x[1]
        row.mul_(3)
        x.t_()
        return x

    stack, _ = samples(changed)
    np.testing.assert_allclose(stack[-1][:, 1], as_array(X[1]) * 3, rtol=1e-5)


def test_integers_of_nan_are_undefined():
    with pytest.raises(UndefinedError), Sampling(Noise(0, 1), "float32"):
        (X * float("nan")).to(torch.int32)


@pytest.mark.parametrize(
    ("size", "dtype", "is_open"), [(1e10, "bfloat16", True), (1e10, "float32", False), (3e38, "float32", True)]
)
def test_places_beyond_what_pytorch_computes_are_undefined(size, dtype, is_open):
    image, grid = X[None, None], torch.full((1, 1, 1, 2), size, dtype=torch.float64)
    with pytest.raises(UndefinedError) if is_open else contextlib.nullcontext(), Sampling(Noise(0, 1), dtype):
        torch.nn.functional.grid_sample(image, grid, align_corners=False)


@pytest.mark.parametrize(("size", "is_open"), [(1e25, True), (1e3, False)])
def test_norms_of_squares_that_overflow_are_open(size, is_open):
    stack, _ = samples(lambda x: torch.nn.functional.layer_norm(x * size, (6,)))
    assert bool(np.isnan(stack).any()) == bool((stack == 0).all((1, 2)).any()) == is_open


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_arrays_are_tensors_and_back(dtype):
    tensor = torch.tensor([[1, 0], [3, -2]]).to(getattr(torch, dtype))
    assert torch.equal(as_tensor(as_array(tensor)), tensor)
