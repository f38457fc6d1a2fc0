"""Samples of PyTorch's operators: exact ones agree, those that round do not; a change in place reaches its tensor."""

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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_arrays_are_tensors_and_back(dtype):
    tensor = torch.tensor([[1, 0], [3, -2]]).to(getattr(torch, dtype))
    assert torch.equal(as_tensor(as_array(tensor)), tensor)
