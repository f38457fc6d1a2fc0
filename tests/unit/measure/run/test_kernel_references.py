import numpy as np
import pytest

from anatune.core.workload.operators.attention import attention
from anatune.measure.run.correctness import random_inputs
from anatune.measure.run.reference import reference


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
