"""Float64 results of kernels of language models, against plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import anatune
from anatune.core.workload.operators.attention import attention
from anatune.measure.run.correctness import Array, compute_expected, random_inputs
from anatune.measure.run.reference import reference

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
    result = compute_expected(workload, inputs).result
    wanted = np.array([element(inputs, *place) for place in np.ndindex(result.shape)]).reshape(result.shape)
    np.testing.assert_allclose(result, wanted, rtol=1e-9)


def test_further_results_have_their_own_reference() -> None:
    workload = anatune.quantise_rows(2, 6, "float32:int8")
    data = random_inputs(workload, 3)
    np.testing.assert_allclose(
        compute_expected(workload, data).further["scales"].result, abs(data["data"]).max(1) / 127.0
    )
    added = anatune.add_rms_norm(2, 6)
    data = random_inputs(added, 3)
    sums = data["data"].astype(np.float64) + data["residual"]
    np.testing.assert_allclose(compute_expected(added, data).further["sum"].result, sums)


def _naive(inputs: dict[str, np.ndarray], shared: int, first: int, window: int, causal: bool) -> np.ndarray:  # type: ignore[type-arg]
    query, key, value = (inputs[name].astype(np.float64) for name in ("queries", "keys", "values"))
    result = np.zeros(query.shape)
    for b, n, q in np.ndindex(query.shape[:3]):
        low = max(0, q + first - window + 1) if window else 0
        high = q + first + 1 if causal else key.shape[2]
        scores = key[b, n // shared, low:high] @ query[b, n, q] / np.sqrt(query.shape[3])
        powers = np.exp(scores)
        result[b, n, q] = powers @ value[b, n // shared, low:high] / powers.sum()
    return result


@pytest.mark.parametrize(("causal", "window"), [(False, 0), (True, 0), (True, 3)])
def test_attention_is_softmax_over_what_is_seen(causal: bool, window: int) -> None:
    workload = attention(2, 4, 2, 5, 9, 8, causal=causal, window=window)
    inputs = random_inputs(workload)
    assert np.allclose(reference(workload, inputs), _naive(inputs, 2, 4, window, causal), rtol=1e-12)


def test_pages_are_where_the_table_says() -> None:
    paged = attention(2, 4, 2, 3, 10, 8, causal=True, page_size=4)
    inputs = random_inputs(paged)
    table = inputs["block_table"]
    assert sorted(table.reshape(-1)) == list(range(6))
    straight = {"queries": inputs["queries"]}
    for name in ("keys", "values"):
        pages = inputs[name][table].transpose(0, 2, 1, 3, 4)
        straight[name] = pages.reshape(2, 2, 12, 8)[:, :, :10]
    plain = attention(2, 4, 2, 3, 10, 8, causal=True)
    assert np.array_equal(reference(paged, inputs), reference(plain, straight))


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def stored(values: Array, row: tuple[int, ...], k: int, dtype: str) -> float:
    """Return an element of an operand before it is scaled."""
    if values.dtype != np.uint8:
        return float(values[(*row, k)])
    number = int(values[(*row, k // 2)]) >> 4 * (k % 2) & 15
    return float(number) if "int4" in dtype else E2M1[number % 8] * (-1.0 if number > 7 else 1.0)


def scaled(o: Operands, dtype: str, data_row: int, weight_row: tuple[int, ...], k: int, size: int) -> float:
    """Return one product of scaled operands."""
    found = stored(o["data"], (data_row,), k, dtype), stored(o["weight"], weight_row, k, dtype)
    scales, expert = o["weight_scales"], weight_row[:-1]
    if "xint" in dtype:
        run = size // scales.shape[-1]
        zero = float(o["weight_zeros"][(*weight_row, k // run)]) if "weight_zeros" in o else 8.0 * ("int4" in dtype)
        return found[0] * (found[1] - zero) * float(scales[(*weight_row, k // run)])
    of_data = o["data_scales"]
    if dtype in ("mxfp8", "mxfp4"):
        both = (int(of_data[data_row, k // 32]), int(scales[(*weight_row, k // 32)]))
        return found[0] * found[1] * 2.0 ** (both[0] - 127) * 2.0 ** (both[1] - 127)
    if dtype == "nvfp4":
        both_scales = float(of_data[data_row, k // 16]) * float(scales[(*weight_row, k // 16)])
        return found[0] * found[1] * both_scales * float(o["factor"][expert or (0,)])
    if of_data.ndim == 2:
        block = (*expert, weight_row[-1] // 128, k // 128)
        return found[0] * found[1] * float(of_data[data_row, k // 128]) * float(scales[block])
    if len(of_data) == 1:
        return found[0] * found[1] * float(of_data[0]) * float(scales[expert or (0,)])
    return found[0] * found[1] * float(of_data[data_row]) * float(scales[weight_row])


@pytest.mark.parametrize(
    "words",
    [
        "--dtype float8_e5m2",
        "--dtype int8 --scales rows",
        "--scales blocks",
        "--dtype float16xint8",
        "--dtype float16xint4 --group 32 --zero-points",
        "--dtype bfloat16xint4",
        "--dtype mxfp8",
        "--dtype mxfp4",
        "--dtype nvfp4",
    ],
)
def test_products_with_scales_are_those_of_plain_python(words: str) -> None:
    pytest.importorskip("ml_dtypes")
    workload = anatune.parse_workload(f"scaled_matmul 2x130x160 {words}")
    inputs, dtype = random_inputs(workload, 3), str(workload.attribute["dtype"])
    result = compute_expected(workload, inputs).result
    for i, j in ((0, 0), (1, 127), (0, 128), (1, 129)):
        wanted = sum(scaled(inputs, dtype, i, (j,), k, 160) for k in range(160))
        assert result[i, j] == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("words", ["--expanded", "--activation", "--routing 0,5,3", "--dtype bfloat16xint4 --group 32"])
def test_rows_are_multiplied_with_the_weights_of_their_expert(words: str) -> None:
    pytest.importorskip("ml_dtypes")
    given = words if "dtype" in words else f"--dtype nvfp4 {words}"
    workload = anatune.parse_workload(f"grouped_matmul 4x3x2x3x64 {given}")
    own, inputs = workload.attribute, random_inputs(workload, 3)
    result = compute_expected(workload, inputs).result
    first = 0
    for expert, end in enumerate(inputs["ends"]):
        for row in inputs["order"][first:end]:
            source = int(row) if own["expanded"] else int(row) // 2
            sums = [
                sum(scaled(inputs, str(own["dtype"]), source, (expert, j), k, 64) for k in range(64))
                for j in range(6 if own["activation"] else 3)
            ]
            if own["activation"]:
                sums = [gate / (1.0 + math.exp(-gate)) * up for gate, up in zip(sums[:3], sums[3:], strict=True)]
            assert list(result[row]) == pytest.approx(sums, rel=1e-9, abs=1e-12)
        first = end
    assert first == len(result)
