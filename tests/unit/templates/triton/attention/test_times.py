"""Attention that is repeated: what L2 still holds."""

from anatune.core.hardware.files import hardware
from anatune.templates.triton.attention.problem import AttentionProblem, AttentionTiles
from anatune.templates.triton.attention.times import score_attention

A100 = hardware("a100_sxm")


def test_halves_of_l2_keep_keys_twice():
    tiles = AttentionTiles.of([(16, 64, 4, 2, 1, 0)])

    def dram_bytes(seq_kv: int) -> float:
        problem = AttentionProblem(64, 8, 8, 1, seq_kv, 128, causal=True)
        return float(score_attention(problem, tiles, A100, warm=True).moved.dram[0])

    size = A100.l2.size_bytes / (64 * 8 * 2 * 128 * 2)  # keys and values that fill L2
    assert dram_bytes(int(0.3 * size)) == 0.0
    assert dram_bytes(int(0.7 * size)) > 0.0


def test_8_bit_values_are_turned_around_on_hopper():
    tiles = AttentionTiles.of([(128, 128, 8, 2, 1, 1)])

    def slots(name: str, dtype: str) -> float:
        problem = AttentionProblem(4, 16, 16, 4096, 4096, 128, causal=True, dtype=dtype)
        return float(score_attention(problem, tiles, hardware(name)).parts["issue_s"][0])

    assert slots("h100_sxm", "float8_e4m3fn") > 1.2 * slots("h100_sxm", "bfloat16")
    assert slots("b200", "float8_e4m3fn") <= slots("b200", "bfloat16")
