"""Float64 results of kernels on rows, against plain Python, one element at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import anatune
from anatune.measure.run.correctness import Array, expected, random_inputs

Operands = dict[str, Array]


def normed(o: Operands, i: int, j: int, *, centre: bool = False, residual: bool = False) -> float:
    row = [float(x) + (float(o["residual"][i, k]) if residual else 0.0) for k, x in enumerate(o["data"][i])]
    mean = sum(row) / len(row) if centre else 0.0
    square = sum((x - mean) ** 2 for x in row) / len(row)
    value = (row[j] - mean) / math.sqrt(square + 1e-5) * float(o["weight"][j])
    return value + (float(o["bias"][j]) if centre else 0.0)


def powers(o: Operands, i: int, j: int) -> float:
    return math.exp(o["data"][i, j]) / sum(math.exp(x) for x in o["data"][i])


def gated(o: Operands, i: int, j: int) -> float:
    gate, up = (float(o["data"][i, half, j]) for half in (0, 1))
    return gate * up / (1.0 + math.exp(-gate))


def turned(o: Operands, t: int, h: int, e: int) -> float:
    half = o["data"].shape[-1] // 2
    d, sign = e % half, 1.0 if e >= half else -1.0
    other = float(o["data"][t, h, d + half if e < half else d])
    return float(o["data"][t, h, e]) * float(o["cos"][t, d]) + sign * other * float(o["sin"][t, d])


def narrowed(o: Operands, i: int, j: int) -> float:
    return max(-127.0, min(127.0, round(float(o["data"][i, j]) / float(o["scale"][0]))))


def of_group(group: int) -> Callable[[Operands, int, int], float]:
    def value(o: Operands, i: int, j: int) -> float:
        first = j // group * group
        largest = max(abs(float(x)) for x in o["data"][i, first : first + group])
        return round(float(o["data"][i, j]) / (largest / 127.0))

    return value


@pytest.mark.parametrize(
    ("text", "element"),
    [
        ("softmax 2x5", powers),
        ("layer_norm 2x5", lambda o, i, j: normed(o, i, j, centre=True)),
        ("rms_norm 2x5", normed),
        ("add_rms_norm 2x5", lambda o, i, j: normed(o, i, j, residual=True)),
        ("silu_multiply 2x5", gated),
        ("rotary 2x3x6", turned),
        ("quantise_tensor 2x5 --dtype float32:int8", narrowed),
        ("quantise_rows 2x6 --dtype float32:int8", of_group(6)),
        ("quantise_groups 2x6x3 --dtype float32:int8", of_group(3)),
    ],
)
def test_results_are_those_of_plain_python(text: str, element: Callable[..., float]) -> None:
    workload = anatune.parse_workload(text)
    inputs = random_inputs(workload, 3)
    result = expected(workload, inputs).result
    wanted = np.array([element(inputs, *place) for place in np.ndindex(result.shape)]).reshape(result.shape)
    np.testing.assert_allclose(result, wanted, rtol=1e-9)


def test_further_results_have_their_own_reference() -> None:
    workload = anatune.quantise_rows(2, 6, "float32:int8")
    data = random_inputs(workload, 3)
    np.testing.assert_allclose(expected(workload, data).further["scales"].result, abs(data["data"]).max(1) / 127.0)
    added = anatune.add_rms_norm(2, 6)
    data = random_inputs(added, 3)
    sums = data["data"].astype(np.float64) + data["residual"]
    np.testing.assert_allclose(expected(added, data).further["sum"].result, sums)
