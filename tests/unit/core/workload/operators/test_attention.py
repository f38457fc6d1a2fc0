import numpy as np
import pytest

import anatune
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators.attention import attention
from anatune.core.workload.text import parse_workload, workload_to_text
from anatune.errors import WorkloadError
from tests.wording import refuses


def _visible(seq_q: int, seq_kv: int, window: int) -> int:
    last = np.arange(seq_q)[:, None] + seq_kv - seq_q
    keys = np.arange(seq_kv)
    return int(((keys <= last) & ((keys > last - window) if window else True)).sum())


@pytest.mark.parametrize(("seq_q", "seq_kv"), [(1, 1), (1, 9), (7, 7), (5, 9), (12, 64)])
@pytest.mark.parametrize("window", [0, 1, 4, 7, 60, 100])
def test_flop_counts_what_is_seen(seq_q: int, seq_kv: int, window: int) -> None:
    found = attention(2, 6, 3, seq_q, seq_kv, 16, causal=True, window=window)
    assert found.flop == 4 * 2 * 6 * 16 * _visible(seq_q, seq_kv, window)


def test_all_pairs_are_seen_without_a_mask() -> None:
    assert attention(2, 6, 3, 10, 20, 16).flop == 4 * 2 * 6 * 16 * 10 * 20


def test_compulsory_bytes_leave_out_keys_before_every_window() -> None:
    whole = attention(1, 4, 2, 1, 1000, 64, causal=True)
    short = attention(1, 4, 2, 1, 1000, 64, causal=True, window=100)
    own = 2 * 4 * 64 * 2  # query and output
    assert whole.compulsory_bytes == own + 2 * 2 * 1000 * 64 * 2
    assert short.compulsory_bytes == own + 2 * 2 * 100 * 64 * 2


def test_pages_count_once_and_with_their_table() -> None:
    paged = attention(3, 4, 2, 1, 100, 64, page_size=16)
    assert paged.tensor("keys").shape == (3 * 7, 2, 16, 64)
    assert paged.tensor("block_table").shape == (3, 7)
    straight = attention(3, 4, 2, 1, 100, 64)
    assert paged.compulsory_bytes == straight.compulsory_bytes + 3 * 7 * 4
    assert paged.flop == straight.flop


@pytest.mark.parametrize(
    "text",
    [
        "attention 4x32x8x2048x2048x128 --causal --dtype bfloat16",
        "attention 4x32x8x1x2048x128 --causal --window 512 --page-size 16",
        "attention 1x2x2x5x9x80 --dtype float8_e4m3fn:float16",
        "attention 1x2x2x5x9x80",
    ],
)
def test_text_and_json_go_both_ways(text: str) -> None:
    workload = parse_workload(text)
    assert set(workload_to_text(workload).split()) == set(text.split())
    assert parse_workload(workload_to_text(workload)) == workload
    assert Workload.from_json(workload.to_json()) == workload
    assert workload.describe().startswith("attention b=")
    assert anatune.attention(**workload.attribute) == workload


@pytest.mark.parametrize(
    "arguments",
    [
        (1, 5, 2, 8, 8, 64),
        (1, 4, 2, 9, 8, 64, True),
        (1, 4, 2, 8, 8, 64, False, 4),
        (1, 4, 2, 8, 8, 64, True, -1),
        (1, 4, 2, 8, 8, 64, True, 0, "int8"),
        (1, 4, 2, 8, 8, 0),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments: tuple[object, ...]) -> None:
    with refuses(WorkloadError):
        attention(*arguments)  # type: ignore[arg-type]
