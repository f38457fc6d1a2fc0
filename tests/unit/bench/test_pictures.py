"""The picture and the table of whole networks show the figures of docs/bench/models_cpu.md."""

import re

import pytest

pytest.importorskip("plotly", reason="pip install '.[report]'")

from bench.pictures import TABLE, model_times, plot_models
from tests.documents import ROOT

TIMES = model_times(TABLE.read_text())
ENGINES = ("ONNX Runtime", "OpenVINO", "Inductor", "eager")


def test_the_table_is_the_one_of_one_thread():
    assert list(TIMES) == ["resnet18", "resnet50", "vgg16", "mobilenet_v2", "inception_v3", "bert_base", "gpt2"]
    for ratios in TIMES.values():  # pairs within rounds, so not quite the medians' ratio
        assert ratios["over"] == pytest.approx(min(ratios[name] for name in ENGINES) / ratios["anatune"], rel=0.05)


def test_the_readme_has_these_numbers():
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    shown = {name: [float(own), *map(float, rest.split(" | "))] for name, own, rest in rows}
    columns = ("anatune", *ENGINES, "over")
    assert shown == {name: [ratios[column] for column in columns] for name, ratios in TIMES.items()}


def test_bars_are_ratios_of_the_table():
    bars = {trace.name: trace for trace in plot_models(TIMES).data if trace.type == "bar"}
    assert len(bars) == len(ENGINES)
    assert bars["OpenVINO"].y[0] == pytest.approx(TIMES["resnet18"]["OpenVINO"] / TIMES["resnet18"]["anatune"])
    assert bars["PyTorch Inductor"].y[-1] == pytest.approx(TIMES["gpt2"]["Inductor"] / TIMES["gpt2"]["anatune"])
