"""``anatune plan --template tensorcore`` from the shell."""

import json

import pytest


def plan(anatune, words):
    return anatune("plan", *words.split())


def test_json(anatune):
    words = "matmul 512x256x128 --dtype bfloat16 --hw a100 --template tensorcore --top-k 2 --json"
    tree = json.loads(plan(anatune, words).stdout)
    assert len(tree["schedules"]) == 2
    first = tree["schedules"][0]
    assert set(first["tiles"]) == {"m", "n", "k"}
    assert set(first["options"]) == {"stages", "group"}
    assert "mma_s" in first["prediction"]["parts"]
    assert tree["guarantee"]["kind"] == "exhaustive"


def test_report_names_tensor_cores_and_levels(anatune):
    text = plan(anatune, "matmul 512x256x128 --hw a100 --template tensorcore --explain").stdout
    assert "156.0 TFLOP/s in tf32 on tensor cores" in " ".join(text.split())
    assert "tiles of m, n: block x warp x mma x lanes" in text
    assert "tiles of k: stage x mma x lanes" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("matmul 64x64x64 --dtype float16 --hw v100 --template tensorcore", "expected sm_80 or later"),
        ("matmul 64x64x64 --dtype int8 --hw a100 --template tensorcore", "dtype is int8"),
        ("max_pool2d 1x8x8x8 2x2 --hw a100 --template tensorcore", "no product of two tensors"),
        ("matmul 64x64x64 --hw xeon_gold_6230r --template tensorcore", "template is 'tensorcore'"),
        ("matmul 64x64x64 --hw a100 --template wmma", "expected one of cuda"),
    ],
)
def test_refusals_are_one_line(anatune, words, message):
    done = plan(anatune, words)
    assert done.returncode in (1, 2)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("note:")]  # a first run compiles
    assert len(lines) == 1
    assert message in lines[0]
