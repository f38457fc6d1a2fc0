"""What objects look like where somebody prints them, or a notebook shows them."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import pytest

import anatune
from anatune.core.show import duration, html_table
from tests.unit.tuning.fakes import failed, session

WORKLOADS = {
    "matmul": anatune.matmul(64, 48, 32),
    "conv3d": anatune.conv3d(2, 8, 8, 9, 9, 16, 3, 3, 3, padding=1, epilogue=("bias", "relu")),
}
DEVICES = [("rtx3090", None), ("rtx3090", "pipelined"), ("a100", "triton"), ("xeon_8124m", None)]
MOST = 600


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(("hw", "template"), DEVICES)
def test_one_short_line(name, hw, template):
    workload = WORKLOADS[name]
    space = anatune.space(workload, hw, template=template)
    plan = anatune.plan(workload, hw, 50, template=template)
    assert f"{workload.operator}" in repr(plan)
    assert f" on {plan.hardware.name}: 50 schedules, best {duration(plan.predictions[0].time_s)}" in repr(plan)
    trial = anatune.Trial(plan.best, failed(message="error\n" * 1000))
    for one in (workload, plan.hardware, space, plan, plan.best, plan.predictions[0], trial, trial.measurement):
        assert repr(one).startswith(f"{type(one).__name__}(")
        assert "\n" not in repr(one)
        assert len(repr(one)) < (2 * MOST if one is trial else MOST), repr(one)
    for one in (
        anatune.prune(workload, hw, 4, template=template),
        anatune.prune(workload, hw, 4, candidates=[plan.best]),
    ):
        assert re.fullmatch(r"Subset\(keep 4 of .{,300}\)", repr(one))


def test_what_they_say():
    workload = WORKLOADS["matmul"]
    plan = anatune.plan(workload, "rtx3090", 1)
    assert repr(plan.best) == (f"Schedule({workload.describe()} on rtx3090, cuda: {plan.best.describe()})")
    assert repr(plan.hardware) == "GpuSpec(rtx3090: NVIDIA GeForce RTX 3090, sm_86)"
    assert repr(replace(plan, schedules=[], predictions=[])).endswith(
        f"rtx3090: nothing is legal, {plan.guarantee.kind})"
    )
    broken = msgspec.structs.replace(plan.predictions[0], legal=False, rule="grid_blocks")
    assert repr(broken).endswith(", illegal: grid_blocks)")
    result = session(trials=6, script={1: failed()}).run()
    assert re.fullmatch(r"TuningResult\(matmul .* on xeon_gold_6230r: 6 trials by model, best .* ms\)", repr(result))
    assert repr(result.trials[1].measurement) == "Measurement(build_error: LLVM said no)"


def test_a_schedule_of_wrong_types_is_shown_all_the_same():
    made = anatune.Schedule("matmul", "rtx3090", "cuda", {"i": 5})
    assert "workload='matmul'" in repr(made)


class Tables(HTMLParser):
    """Collects the rows of tables and every tag that was met."""

    def __init__(self):
        super().__init__()
        self.rows, self.tags = [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data):
        if self.rows:
            self.rows[-1].append(data)


def read(text):
    tables = Tables()
    tables.feed(text)
    assert tables.tags == {"table", "caption", "tr", "th", "td"}
    return tables.rows


def test_tables_of_notebooks_are_small():
    plan = anatune.plan(WORKLOADS["matmul"], "rtx3090", 50)
    rows = read(plan._repr_html_())
    assert len(rows) == 1 + 20
    assert rows[1][0] == "1"
    assert rows[1][-1] == plan.best.describe()
    assert len(plan._repr_html_()) < 5000
    assert [row[0] for row in read(plan.best._repr_html_())[1:]] == ["i", "j", "k", "unroll", "vector A", "vector B"]
    result = session(trials=6, script={1: failed()}).run()
    assert [row[0] for row in read(result._repr_html_())[1:]] == [str(t.number) for t in sorted_trials(result)]


def sorted_trials(result):
    ran = [trial for trial in result.trials if trial.measurement.time_s is not None]
    return sorted(ran, key=lambda trial: trial.measurement.relative)


def test_values_are_escaped():
    text = html_table("<b>", ["<script>", "&"], [["a<b", 'c"d'], [1, None]])
    assert "<script>" not in text
    assert read(text) == [["<script>", "&"], ["a<b", 'c"d'], ["1", "None"]]
    plan = anatune.plan(WORKLOADS["matmul"], "rtx3090", 1)
    odd = msgspec.structs.replace(plan.predictions[0], bound_by="<img src=x>")
    assert read(replace(plan, predictions=[odd])._repr_html_())[1][3] == "<img src=x>"
