"""Which Triton tuned a shipped file."""

import pandas as pd

from bench.replay.serving import STRAIGHT, TURNED, TWO_SUMS, tuned_with

COLUMNS = ["source", "device", "n", "k", "m", "block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages"]


def test_copies_are_as_old_as_what_they_copy():
    rows = [
        ("sglang", "NVIDIA_H200", 576, 7168, 1, 64, 32, 128, 1, 4, 5),
        ("vllm", "NVIDIA_H200", 576, 7168, 1, 16, 32, 128, 1, 4, 5),
        ("sglang", "NVIDIA_H200", 512, 7168, 1, 64, 32, 128, 1, 4, 5),
        ("vllm", "NVIDIA_H200", 512, 7168, 1, 64, 32, 128, 1, 4, 5),
        ("vllm", "NVIDIA_H200", 2112, 7168, 1, 16, 32, 128, 1, 4, 5),
        ("vllm", "NVIDIA_B200", 512, 7168, 1, 16, 32, 128, 1, 4, 5),
    ]
    found = tuned_with(pd.DataFrame(rows, columns=COLUMNS))
    assert [found[row[:4]] for row in rows] == [TURNED, STRAIGHT, TURNED, TURNED, STRAIGHT, TWO_SUMS]
