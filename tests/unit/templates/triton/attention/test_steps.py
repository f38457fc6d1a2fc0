import numpy as np
import pytest

from anatune.templates.triton.attention.problem import AttentionProblem, AttentionTiles
from anatune.templates.triton.attention.steps import count_steps


def _brute(problem: AttentionProblem, block_m: int, block_n: int) -> tuple[float, int, float]:
    """Return steps of a block on average, most of them, and the share of masked ones, query by query."""
    steps, masked = [], 0
    for first in range(0, problem.rows, block_m):
        queries = sorted({row // problem.shared for row in range(first, min(first + block_m, problem.rows))})
        seen = np.zeros((len(queries), -(-problem.seq_kv // block_n) * block_n), dtype=bool)
        for number, query in enumerate(queries):
            last = query + problem.seq_kv - problem.seq_q
            low = max(0, last - problem.window + 1) if problem.window else 0
            seen[number, low : last + 1] = True
        by_step = seen.reshape(len(queries), -1, block_n).transpose(1, 0, 2).reshape(-1, len(queries) * block_n)
        touched = np.flatnonzero(by_step.any(axis=1))
        span = range(touched[0], touched[-1] + 1)
        steps.append(len(span))
        masked += sum(not by_step[step].all() for step in span)
    return float(np.mean(steps)), max(steps), masked / sum(steps)


@pytest.mark.parametrize("window", [0, 5, 40, 100])
@pytest.mark.parametrize(("shared", "seq_q", "seq_kv"), [(1, 64, 64), (3, 50, 90), (4, 1, 100)])
def test_steps_of_causal_tiles_are_those_that_are_seen(window: int, shared: int, seq_q: int, seq_kv: int) -> None:
    problem = AttentionProblem(1, 2 * shared, 2, seq_q, seq_kv, 64, causal=True, window=window)
    for block_m, block_n in ((16, 16), (32, 16), (64, 32)):
        counts = count_steps(problem, AttentionTiles.of([[block_m, block_n, 4, 2, 1]]))
        mean, most, masked = _brute(problem, block_m, block_n)
        assert counts.mean[0] == np.ceil(mean)
        assert counts.most[0] == most
        assert counts.masked[0] == pytest.approx(masked)


def test_parts_share_the_steps() -> None:
    problem = AttentionProblem(2, 8, 2, 1, 1024, 64)
    counts = count_steps(problem, AttentionTiles.of([[16, 64, 4, 2, 1], [16, 64, 4, 2, 4]]))
    assert counts.blocks.tolist() == [4, 16]
    assert counts.mean.tolist() == [16, 4]
