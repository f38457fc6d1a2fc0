"""Whole tuning sessions on a GPU that is not there: CUDA C runs on the CPU, the driver pretends."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("tvm")

import anatune
from anatune.core.trial import Outcome
from anatune.errors import DeviceError, MissingDependencyError, RecordError, SpaceError
from anatune.measure.cuda.measurer import GpuMeasurer, build_schedules
from anatune.measure.emulate.emulator import compiler
from anatune.measure.run.measurer import Limits
from anatune.measure.run.timing import TimingProtocol
from anatune.records.store import RecordStore
from anatune.tuning.ending import choose_contenders
from anatune.tuning.manifest import MANIFEST, build_manifest, read_manifest
from anatune.tuning.session import StandIns, TuningSession
from anatune.tuning.settings import TuningSettings
from tests.unit.measure.fake_cuda import BACKEND, EMULATED, ENTRIES, STATE

H200 = anatune.hardware("h200")
WORKLOAD = anatune.matmul(32, 32, 16)
QUICK = TimingProtocol(sample_s=0.0005, reference_s=0.0003, budget_s=0.02)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv(STATE, str(tmp_path))
    return tmp_path


def session(entries=ENTRIES, run_s=20, **more):
    measurer = functools.partial(GpuMeasurer, protocol=QUICK, entries=entries)
    stand_ins = StandIns(host=more.pop("host", H200), measurer=more.pop("measurer", measurer))
    given = {"strategy": "random", "backend": BACKEND, "limits": Limits(build_s=30, run_s=run_s), **more}
    return TuningSession(WORKLOAD, H200, TuningSettings(**given), stand_ins=stand_ins)


def faults(state, **names):
    (state / "faults.json").write_text(json.dumps({key.removeprefix("at"): fault for key, fault in names.items()}))


def recorded(path):
    with RecordStore(path) as store:
        (one,) = store.sessions()
        return one, [record.trial for record in store.trials(session=one)]


def test_a_session_whose_kernels_are_emulated_as_they_are(state):
    try:
        compiler()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    records = state / "r.sqlite"
    result = session(EMULATED, trials=3, records=records, l2="warm", seed=4).run()  # whose draws are near the best
    assert [trial.measurement.outcome for trial in result.trials] == [Outcome.OK] * 3
    assert result.trials[0] is result.plan_first
    assert result.trials[0].predicted_s > 0
    # times of this machine decide how many trials are near the best one, and are measured again
    contenders = choose_contenders(result.trials, result.plan_first)
    assert (result.compare is None) == (len(contenders) < 2)
    again = [] if result.compare is None else [contender.number for contender in result.compare.contenders]
    assert again == [trial.number for trial in contenders if len(contenders) > 1]
    assert result.best_trial.number == (contenders[0].number if result.compare is None else result.compare.best)
    one, trials = recorded(records)
    assert one.hardware == H200
    told = {
        "l2": "warm",
        "template": "pipelined",
        "trials": 3,
        "gpu": "NVIDIA H200",
        "cuda_driver": 13000,
        "built": "here",
    }
    assert {name: one.settings[name] for name in told} == told
    assert len(trials) == 3 + len(again)


def test_a_device_that_disappears_is_one_line_and_the_session_goes_on_later(state):
    faults(state, at0="wrong", at2="lost")
    records = state / "r.sqlite"
    with pytest.raises(
        DeviceError, match=r"NO_DEVICE from cuInit; 3 trials are kept in .*r\.sqlite, --resume continues"
    ):
        session(trials=5, records=records).run()
    _, trials = recorded(records)
    assert [trial.measurement.outcome for trial in trials] == [Outcome.WRONG_RESULT, Outcome.OK, Outcome.LOST_DEVICE]
    (state / "lost").unlink()
    (state / "faults.json").unlink()
    result = session(trials=5, records=records, resume=True).run()
    assert (result.num_resumed, len(result.trials)) == (3, 5)
    assert len({trial.schedule.key for trial in result.trials}) == 5
    warm = session(trials=1, records=records, resume=True, l2="warm").run()
    assert warm.num_resumed == 0  # times with another state of the cache are no use


def test_build_here_and_measure_there(state):
    folder = state / "kernels"
    build = functools.partial(build_schedules, entries=ENTRIES)
    told = []
    made = build_manifest(WORKLOAD, H200, folder, trials=3, builds=build, progress=lambda *now: told.append(now))
    assert told[-1] == (3, 0, 3)
    assert (made.templates, made.accuracy) == (("pipelined",), "standard")
    assert {Path(entry.artifact.image).name for entry in made.entries} <= {path.name for path in folder.iterdir()}
    moved = folder.rename(state / "elsewhere")
    records = state / "r.sqlite"
    faults(state, at1="illegal")
    result = session(manifest=moved, measurer=None, records=records, trials=64).run()
    assert [trial.schedule.key for trial in result.trials] == [schedule.key for schedule in made.schedules()]
    assert [trial.measurement.outcome for trial in result.trials] == [Outcome.OK, Outcome.RUN_ERROR, Outcome.OK]
    assert [trial.predicted_s for trial in result.trials] == [entry.predicted_s for entry in made.entries]
    one, _ = recorded(records)
    assert one.strategy == "plan"
    assert one.settings["compiler"] == made.compiler
    again = session(manifest=moved, measurer=None, records=records, trials=64, resume=True).run()
    assert (again.num_resumed, len(again.trials)) == (3, 3)


def test_where_a_manifest_is_measured_neither_tvm_nor_numba_is_needed(state):
    folder = state / "kernels"
    build_manifest(WORKLOAD, H200, folder, trials=2, builds=functools.partial(build_schedules, entries=ENTRIES))
    for name in ("tvm", "numba", "pandas"):
        (state / "blocked" / name).mkdir(parents=True)
        (state / "blocked" / name / "__init__.py").write_text("raise ImportError('not here')")
    repository = Path(anatune.__file__).parents[1]
    path = os.pathsep.join([str(state / "blocked"), str(repository), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "anatune", "tune", "--manifest", folder, "--backend", BACKEND),
            *("--records", state / "r.sqlite", "--output", state / "best.json", "--l2", "warm"),
        ],
        env={**os.environ, "PYTHONPATH": path},
        cwd=state,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 trials" in done.stdout
    assert "h200 (NVIDIA H200 SXM)" in done.stdout
    assert (state / "best.json").exists()
    assert {trial.measurement.outcome for trial in recorded(state / "r.sqlite")[1]} == {Outcome.OK}


def test_damaged_manifests_are_one_line(state):
    folder = state / "kernels"
    made = build_manifest(WORKLOAD, H200, folder, trials=1, builds=functools.partial(build_schedules, entries=ENTRIES))
    path = folder / MANIFEST
    text = path.read_text()
    assert read_manifest(path) == read_manifest(folder)
    cubin = folder / made.entries[0].artifact.image
    cases = [
        (
            path,
            text.replace('"grid":', '"grid":1'),
            "is damaged: its contents are not what was written; build it again",
        ),
        (path, text[:100], "is damaged or no manifest"),
        (path, "{}", "is damaged or no manifest"),
        (path, text.replace('"version":2', '"version":7'), "is of version 7, expected 2; build it again"),
        (cubin, "x", "is damaged: its contents are not what was built"),
        (cubin, None, "no such file"),
    ]
    for file, changed, message in cases:
        kept = file.read_bytes()
        file.unlink()
        if changed is not None:
            file.write_text(changed)
        with pytest.raises(RecordError, match=message) as error:
            read_manifest(folder)
        assert "\n" not in str(error.value)
        file.write_bytes(kept)
    with pytest.raises(RecordError, match="expected a folder that `anatune tune --build-only` wrote"):
        read_manifest(state / "nothing")
    with pytest.raises(SpaceError, match=r"its kernels compute matmul i=32 j=32 k=16 .* expected"):
        TuningSession(anatune.matmul(8, 8, 8), H200, TuningSettings(manifest=folder))
    with pytest.raises(SpaceError, match=r"its kernels are for h200 \(sm_90\), expected sm_86"):
        TuningSession(WORKLOAD, anatune.hardware("rtx3090"), TuningSettings(manifest=folder))


def test_wrong_arguments():
    with pytest.raises(SpaceError, match="l2 is 'cold', expected one of flush, warm"):
        session(l2="cold")
    with pytest.raises(SpaceError, match="threads is 2, but h200 is a GPU"):
        session(threads=2)
    with pytest.raises(SpaceError, match="l2 is for GPUs"):
        TuningSession(WORKLOAD, anatune.hardware("host"), TuningSettings(l2="warm"))
    with pytest.raises(DeviceError, match="h200 is a GPU with 4800 GB/s"):
        session(host=anatune.hardware("h100_sxm"))
    with pytest.raises(DeviceError, match="is a CPU: kernels for it are built where they are measured"):
        build_manifest(WORKLOAD, anatune.hardware("xeon_gold_6230r"), "x")
    with pytest.raises(DeviceError, match=r"mi300x \(gfx942\) is no NVIDIA GPU.*`anatune export` writes kernels"):
        build_manifest(WORKLOAD, anatune.hardware("mi300x"), "x")
    assert msgspec.json.encode(H200)
