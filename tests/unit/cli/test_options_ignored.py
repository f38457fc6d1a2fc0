"""An option that would be ignored is refused, never swallowed."""

import pytest

from anatune.cli import main


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("tune --hw host matmul 8x8x8 --device 0", "--device is for GPUs"),
        ("tune --hw host matmul 8x8x8 --backend pycuda", "--backend is for GPUs"),
        ("tune --hw host matmul 8x8x8 --l2 warm", "--l2 is for GPUs"),
        ("tune --hw h200 matmul 8x8x8 --build-only k --strategy model", "--strategy"),
        ("tune --hw h200 matmul 8x8x8 --build-only k --start model", "--start"),
        ("tune --hw h200 matmul 8x8x8 --build-only k --records r.sqlite", "--records"),
        ("tune --hw h200 matmul 8x8x8 --build-only k --threads 1", "--threads"),
        ("tune --hw h200 matmul 8x8x8 --build-only k --resume", "--resume"),
        ("tune --hw h200 matmul 8x8x8 --build-only k --time-limit 9", "--time-limit"),
        ("tune --hw h200 matmul 8x8x8 --build-only k --l2 flush", "--l2"),
        ("tune --hw h200 matmul 8x8x8 --build-only k --device 0", "--device"),
        ("tune --hw h200 matmul 8x8x8 --build-only k --backend pycuda", "--backend"),
        ("tune --hw h200 matmul 8x8x8 --build-only k --output o.json", "--output"),
        ("tune --manifest k --strategy model", "--strategy"),
        ("tune --manifest k --accuracy relaxed", "--accuracy"),
        ("tune --manifest k --start paper", "--start"),
        ("tune --manifest k --seed 0", "--seed"),
        ("tune --manifest k --template cuda", "--template"),
        ("tune --manifest k --threads 1", "--threads"),
        ("tune --manifest k --stride 2", "--stride"),
        ("tune --manifest k --transpose-a", "--transpose-a"),
        ("prune --hw rtx3090 --for triton matmul 64x64x64 --plain", "--plain does not apply to --for triton"),
        ("prune --hw rtx3090 --for triton matmul 64x64x64 --model x", "--model"),
        ("prune --hw rtx3090 --for triton matmul 64x64x64 --template cuda", "--template"),
        ("prune --hw rtx3090 --for triton matmul 64x64x64 --time-limit 3", "--time-limit"),
        ("prune --hw rtx3090 --for triton matmul 64x64x64 --distinct", "--distinct"),
        ("prune --hw rtx3090 --for triton matmul 64x64x64 --no-diverse", "--no-diverse"),
        ("hw detect --print --force", "--print"),
        ("plan --hw rtx3090 matmul 8x8x8 --plain --model x", "--plain"),
    ],
)
def test_usage_errors(capsys, words, option):
    assert main.main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {option}")
    assert (captured.err.count("\n"), captured.out) == (1, "")
