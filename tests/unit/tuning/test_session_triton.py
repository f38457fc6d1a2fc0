"""Tuning sessions of the template triton on a GPU that is not there: no Triton, the driver pretends."""

import functools

import pytest

pytest.importorskip("triton", reason="records name its version")

import anatune
from anatune.core.trial import Outcome
from anatune.measure.cuda.measurer import GpuMeasurer, build_schedules, entries_for
from anatune.measure.run.measurer import Limits
from anatune.measure.run.timing import TimingProtocol
from anatune.records.store import RecordStore
from anatune.tuning.machine import gpu_templates
from anatune.tuning.manifest import build_manifest, read_manifest
from anatune.tuning.session import StandIns, TuningSession
from anatune.tuning.settings import TuningSettings
from tests.unit.measure import fake_cuda
from tests.unit.measure.fake_cuda import BACKEND, ENTRIES, STATE

H200 = anatune.hardware("h200")
WORKLOAD = anatune.matmul(128, 128, 64, dtype="float16")
SMALL = anatune.matmul(16, 16, 16, dtype="float16")
QUICK = TimingProtocol(sample_s=0.0005, reference_s=0.0003, budget_s=0.02)
BUILDS = ENTRIES._replace(builder="tests.unit.measure.fake_cuda:build_triton")


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv(STATE, str(tmp_path))
    return tmp_path


def session(workload=WORKLOAD, **more):
    measurer = functools.partial(GpuMeasurer, protocol=QUICK, entries=BUILDS)
    given = {"strategy": "random", "backend": BACKEND, "limits": Limits(build_s=30, run_s=20), **more}
    stand_ins = StandIns(host=H200, measurer=None if "manifest" in more else measurer)
    return TuningSession(workload, H200, TuningSettings(**given), stand_ins=stand_ins)


def test_a_session(state):
    records = state / "r.sqlite"
    result = session(trials=3, template="triton", records=records).run()
    assert [trial.measurement.message for trial in result.trials] == [""] * 3
    assert {trial.measurement.outcome for trial in result.trials} == {Outcome.OK}
    with RecordStore(records) as store:
        (one,) = store.sessions()
    assert one.settings["templates"] == ["triton"]
    assert one.settings["compiler"].startswith("Triton 3.")
    assert one.settings["flags"] == ["disable_line_info"]


def test_builders_begin_with_what_the_template_needs():
    assert entries_for("triton").builder_setup == "anatune.codegen.triton.artifact:set_up"
    assert entries_for("thin").builder_setup == "anatune.codegen.cuda.artifact:set_up"


def test_build_here_and_measure_there(state):
    build = functools.partial(build_schedules, entries=BUILDS)
    made = build_manifest(WORKLOAD, H200, state / "kernels", trials=2, template="triton", builds=build)
    assert (made.templates, made.flags) == (("triton",), ("disable_line_info",))
    assert made.compiler.startswith("Triton 3.")
    moved = (state / "kernels").rename(state / "elsewhere")
    assert all((moved / entry.artifact.image).exists() for entry in made.entries)
    assert read_manifest(moved).entries[0].artifact.scratch_bytes == 384
    result = session(manifest=moved).run()
    assert [trial.measurement.outcome for trial in result.trials] == [Outcome.OK] * 2


def test_a_manifest_has_the_first_schedules_of_all_templates(state):
    build = functools.partial(build_schedules, entries=BUILDS._replace(builder=f"{fake_cuda.__name__}:build_any"))
    made = build_manifest(SMALL, H200, state / "kernels", trials=12, builds=build)
    assert made.templates == ("pipelined", "triton")
    own = [anatune.plan(SMALL, H200, 12, template=name, distinct=True) for name in made.templates]
    times = sorted(told.time_s for plan in own for told in plan.predictions)
    assert [entry.predicted_s for entry in made.entries] == times[:12]
    assert made.compiler.split(", ")[1].startswith("Triton 3.")
    result = session(SMALL, manifest=state / "kernels").run()
    assert result.templates == made.templates
    assert [trial.measurement.message for trial in result.trials] == [""] * 12


def test_templates_that_can_only_be_planned_are_left_out():
    large = anatune.matmul(65536, 65536, 64, dtype="float16")
    assert [one.name for one in gpu_templates(large, H200, "standard")] == ["triton"]
    assert [one.name for one in gpu_templates(SMALL, H200, "standard")] == ["pipelined", "triton"]
    plain = anatune.matmul(65536, 65536, 64)  # tf32 has to be asked for
    assert [one.name for one in gpu_templates(plain, H200, "standard")] == ["pipelined"]
    assert [one.name for one in gpu_templates(plain, H200, "relaxed")] == ["triton"]
