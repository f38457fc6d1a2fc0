"""bench.cpu.foreign_table: rows, what they come to, the page of the docs."""

import json
from pathlib import Path

import pytest

from bench.cpu.foreign_table import page, rows, said
from bench.models_foreign import _is_tried

ROOT = Path(__file__).parents[4]
RIGHT = {"state": "right", "error": 2e-7, "compile_s": 12.3, "kernels": 3}
TIMES = {"anatune": 1e-3, "eager": 2e-3, "inductor": 1.5e-3}
MODELS = {
    "unet": {"module": RIGHT, "onnx": {**RIGHT, "times_s": TIMES}},
    "dlrm": {
        "module": {**RIGHT, "times_s": {"anatune": 2e-3, "onnxruntime": 1e-3}},
        "onnx": {"state": "refused", "why": "?"},
    },
    "bert": {"module": {"state": "wrong", "error": 0.1, "compile_s": 1.0}},
}


def test_a_row_is_that_of_the_route_that_was_timed():
    bert, dlrm, unet = rows(MODELS)
    assert unet.cells() == ["unet", "module, onnx", "12", "2e-07", "1,000", "2.00", "1.50", "", "1.50"]
    assert dlrm.cells() == ["dlrm", "module", "12", "2e-07", "2,000", "", "", "0.50", "0.50"]
    assert bert.cells() == ["bert", "wrong", "", "", "", "", "", "", ""]
    assert said([bert, dlrm, unet]) == [
        "2 of 3 models are right by one route at least (2 from PyTorch, 1 from ONNX).",
        "The fastest other engine's time over ours, geometric mean of 2: 0.87 (aim 1.15); below 0.8: dlrm 0.50.",
    ]


@pytest.mark.parametrize(
    ("name", "route", "times", "is_tried"),
    [
        ("unet", "module", False, True),
        ("unet", "module", True, True),  # by the other route
        ("bert", "module", True, True),
        ("bert", "onnx", False, False),
        ("dlrm", "onnx", True, True),
    ],
)
def test_what_was_tried_is_not_tried_again(name, route, times, is_tried):
    assert _is_tried(MODELS[name], route, times) is is_tried
    assert not _is_tried({"module": RIGHT}, "module", times=True)


def test_the_page_is_what_the_bench_found():
    document = json.loads((ROOT / "bench" / "models_foreign.json").read_text())
    assert (ROOT / "docs" / "reference" / "models.md").read_text() == page(document)
