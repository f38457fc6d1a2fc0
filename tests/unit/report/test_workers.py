"""Machines that measure, as text."""

import dataclasses

import msgspec

from anatune.measure.place import WorkerState
from anatune.report.text import join_lines
from anatune.report.tuning import model_progress_text, progress_text, result_lines
from anatune.report.workers import failures_text, fleet_text, news
from anatune.tuning.result import ModelProgress, TuningProgress
from tests.unit.tuning.fakes import failed, session
from tests.wording import check_texts

H200 = "NVIDIA H200"


def workers(*states, **changes):
    return tuple(WorkerState(f"gpu{number}", H200, state, **changes) for number, state in enumerate(states, 1))


def test_news_are_told_once():
    both = workers("ready", "ready")
    assert news((), both) == ["workers gpu1, gpu2 joined: NVIDIA H200"]
    assert news(both, both) == []
    lost = (both[0], msgspec.structs.replace(both[1], state="lost", why="its connection closed"))
    assert news(both, lost) == ["worker gpu2 is lost: its connection closed"]
    busier = (msgspec.structs.replace(lost[0], trials=7), lost[1])
    assert news(lost, busier) == []
    assert news(busier, both) == ["worker gpu2 is ready again"]
    refused = (*both, WorkerState("gpu3", "NVIDIA A100", "refused", "is sm_80, expected sm_90"))
    assert news(both, refused) == ["worker gpu3 is refused: is sm_80, expected sm_90"]
    quarantined = (both[0], msgspec.structs.replace(both[1], state="quarantined"))
    assert news(both, quarantined) == ["worker gpu2 is quarantined"]


def test_many_that_join_at_once_are_one_line_for_each_device():
    many = workers(*["ready"] * 200)
    assert news((), many) == ["workers gpu1, gpu2, gpu3 and 197 more joined: NVIDIA H200"]
    mixed = (*workers("ready"), WorkerState("board"))
    assert news((), mixed) == ["worker gpu1 joined: NVIDIA H200", "worker board joined"]


def test_how_many_devices_and_how_fast():
    assert fleet_text((), 3.0) == ""
    assert fleet_text(workers("ready"), None) == "1 device"
    assert fleet_text((*workers("ready"), WorkerState("laptop", "builds only", measures=False)), None) == "1 device"
    assert fleet_text(workers("ready", "lost", "refused", "ready"), 12.3456) == "2 of 4 devices, 12.3 trials/s"


def test_failures_by_machine():
    assert failures_text(3, ()) == "3 failed"
    many = tuple(WorkerState(f"gpu{number}", failed=number) for number in range(6))
    assert failures_text(15, many) == "15 failed (gpu5 5, gpu4 4, gpu3 3, 2 more 3)"


def test_progress_says_who_measures():
    states = (WorkerState("gpu1", H200, trials=4), WorkerState("gpu2", H200, "lost", "gone", trials=2, failed=1))
    text = progress_text(TuningProgress("measure", 6, 20, 1, workers=states, trials_per_s=2.5, left_s=6.0))
    assert text == "trial 6/20; no successful trial yet; 1 failed (gpu2 1); 1 of 2 devices, 2.5 trials/s; 6 s left"
    told = ModelProgress("matmul 8x8x8", 3, 12, 0.002, 0.003, 6.0, 18.2, states, 0.5)
    assert "; 1 of 2 devices, 0.5 trials/s; 18 s left; matmul 8x8x8" in model_progress_text(told)


def test_a_local_session_says_nothing_of_machines():
    seen = []
    result = session(4, progress=seen.append).run()
    assert not any("device" in progress_text(one) or "trials/s" in progress_text(one) for one in seen)
    assert "worker" not in join_lines(result_lines(result))
    assert result.to_dict()["workers"] == []


def of_machines(result, *names):
    """Return a session whose trials were measured by machines, in turn."""
    trials = [
        msgspec.structs.replace(
            trial, measurement=msgspec.structs.replace(trial.measurement, worker=names[number % len(names)])
        )
        for number, trial in enumerate(result.trials)
    ]
    return dataclasses.replace(result, trials=trials)


def test_who_measured_what():
    result = of_machines(session(6, script={1: failed()}).run(), "gpu1", "gpu2")
    states = (WorkerState("gpu1", H200), WorkerState("gpu2", H200, "quarantined", "3 answers differ from gpu1's"))
    result = dataclasses.replace(result, workers=(*states, WorkerState("gpu3", "NVIDIA A100", "refused", "is sm_80")))
    lines = join_lines(result_lines(result)).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("worker"))
    assert [line.split()[:3] for line in (lines[at + 1], lines[at + 2], lines[at + 4])] == [
        ["gpu1", "3", "0"],
        ["gpu2", "3", "1"],
        ["gpu3", "0", "0"],
    ]
    assert lines[at + 3] == "  3 answers differ from gpu1's"
    assert lines[at + 5] == "  is sm_80"
    tree = result.to_dict()["workers"]
    assert [(one["name"], one["trials"], one["failed"], one["state"]) for one in tree] == [
        ("gpu1", 3, 0, "ready"),
        ("gpu2", 3, 1, "quarantined"),
        ("gpu3", 0, 0, "refused"),
    ]
    best = {one.worker.name: one.best for one in result.shares}
    assert tree[0]["best"] == best["gpu1"].number
    assert best["gpu1"].measurement.time_s == min(
        trial.measurement.time_s for trial in result.trials if trial.measurement.worker == "gpu1"
    )
    assert best["gpu3"] is None


def test_a_session_that_was_resumed_elsewhere():
    """Trials of this machine and of a worker that is there no more are counted as well."""
    result = of_machines(session(4).run(), "", "gpu1")
    result = dataclasses.replace(result, workers=workers("ready", "ready")[1:])
    text = join_lines(result_lines(result))
    assert "this machine" in text
    check_texts(line for line in text.splitlines() if "gpu1" in line)
    assert [(one.worker.name, one.worker.trials) for one in result.shares] == [("gpu2", 0), ("", 2), ("gpu1", 2)]
