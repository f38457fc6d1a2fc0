"""Measuring on a GPU that is not there: real processes, real CUDA C, a driver that pretends."""

import json

import msgspec
import pytest

pytest.importorskip("tvm")

import anatune
from anatune.core.trial import Outcome
from anatune.errors import DeviceError, SpaceError
from anatune.measure.cuda.measurer import GpuMeasurer, ManifestMeasurer, build_schedules
from anatune.measure.run.measurer import Limits
from anatune.measure.run.timing import TimingProtocol
from tests.unit.measure.fake_cuda import BACKEND, EMULATED, FAILING, STATE, seconds_of
from tests.wording import refuses

H200 = anatune.hardware("h200")
WORKLOAD = anatune.matmul(32, 64, 16)
QUICK = TimingProtocol(sample_s=0.0005, reference_s=0.0003, budget_s=0.02)
TILES = {"i": (2, 1, 8, 1, 2), "j": (2, 2, 8, 2, 1), "k": (2, 4, 2)}


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv(STATE, str(tmp_path))
    return tmp_path


def schedules(count=1, **more):
    space = anatune.space(WORKLOAD, H200)
    widths = [{"A": a, "B": b} for a in (1, 2) for b in (1, 2, 4)]
    return [space.schedule(TILES, vector=vector, **more) for vector in widths[:count]]


def measurer(**more):
    settings = {
        "limits": Limits(build_s=30, run_s=5),
        "protocol": QUICK,
        "backend": BACKEND,
        "entries": FAILING,
        **more,
    }
    return GpuMeasurer(WORKLOAD, H200, **settings)


def faults(state, *names):
    (state / "faults.json").write_text(json.dumps(dict(enumerate(names))))


@pytest.mark.parametrize("l2", ["flush", "warm"])
def test_schedules_are_checked_and_timed(state, l2):
    first, second = schedules(2)
    with measurer(l2=l2) as session:
        answers = list(session.measure([first, second]))
        again = session.compare([second, first], 0.05)
    assert [schedule for schedule, _ in answers] == [first, second]
    for schedule, measurement in answers:
        assert measurement.outcome is Outcome.OK, measurement.message
        assert measurement.max_rel_error < 1e-6
        assert len(measurement.times_s) >= 2  # what is slow is not timed to the end
        want = seconds_of(schedule)
        assert measurement.time_s == pytest.approx(want)
        assert measurement.relative == pytest.approx(want / 65e-6)
    assert [one.time_s for one in again] == pytest.approx([answers[1][1].time_s, answers[0][1].time_s])


@pytest.mark.parametrize("options", [{"split": 2}, {"split": 2, "whole": 3, "atomic": 1}])
def test_schedules_of_several_launches(state, options):
    (plain,) = schedules()
    split = msgspec.structs.replace(plain, options=options)
    with measurer(entries=EMULATED, backend=BACKEND) as session:
        ((_, measurement),) = session.measure([split])
    assert measurement.outcome is Outcome.OK, measurement.message
    assert 0 < measurement.max_rel_error < 1e-6


def test_faults_are_outcomes(state):
    faults(state, "wrong", "changes an operand", "illegal", "writes outside", "", "refused")
    bad = schedules(1, unroll=1024) + schedules(1, unroll=512)
    with measurer() as session:
        answers = [measurement for _, measurement in session.measure(schedules(6) + bad)]
    outcomes = [(answer.outcome, answer.message) for answer in answers]
    assert [outcome for outcome, _ in outcomes] == [
        Outcome.WRONG_RESULT,
        Outcome.WRONG_RESULT,
        Outcome.RUN_ERROR,
        Outcome.WRONG_RESULT,
        Outcome.OK,
        Outcome.RUN_ERROR,
        Outcome.BUILD_ERROR,
        Outcome.INVALID,
    ], outcomes
    messages = [message for _, message in outcomes]
    assert "C[0, 1] is 3, expected" in messages[0]
    assert "the kernel changed its operand" in messages[1]
    assert "the kernel failed on the GPU: ILLEGAL_ADDRESS" in messages[2]
    assert "the kernel wrote outside of C" in messages[3]
    assert "LAUNCH_OUT_OF_RESOURCES" in messages[5]
    assert messages[6:] == ["ptxas says no", "no such tile"]


def test_a_kernel_that_hangs_costs_its_process_only(state):
    faults(state, "hangs", "")
    with measurer(limits=Limits(build_s=30, run_s=2)) as session:
        answers = [measurement for _, measurement in session.measure(schedules(2))]
    assert [answer.outcome for answer in answers] == [Outcome.RUN_TIMEOUT, Outcome.OK]
    assert answers[0].message == "run: not finished after 2 s"


def test_a_device_that_disappears_ends_the_session(state):
    faults(state, "", "lost", "")
    seen = []
    with measurer() as session:
        answers = session.measure(schedules(3))
        with refuses(DeviceError):
            seen.extend(measurement.outcome for _, measurement in answers)
    assert seen == [Outcome.OK, Outcome.LOST_DEVICE]


def test_what_was_built_elsewhere(state, tmp_path):
    wanted = schedules(2) + schedules(1, unroll=1024)
    reference, *built = build_schedules(wanted, H200, tmp_path, entries=FAILING)
    assert {schedule for schedule, _ in built} == set(wanted)
    more = {"protocol": QUICK, "backend": BACKEND, "built": {s.key: b for s, b in built}, "reference": reference}
    with ManifestMeasurer(WORKLOAD, H200, **more) as session:
        answers = [measurement for _, measurement in session.measure(wanted)]
        with refuses(SpaceError):
            list(session.measure(schedules(3)[2:]))
    assert [answer.outcome for answer in answers] == [Outcome.OK, Outcome.OK, Outcome.BUILD_ERROR]
    assert answers[2].build_s > 0


def test_resources(tmp_path):
    import msgspec

    from anatune.codegen.cuda.artifact import check_resources, read_image
    from anatune.core.compiler_facts import CompilerFacts
    from tests.unit.measure.fake_cuda import build

    artifact = build(schedules()[0], tmp_path)
    check_resources(artifact, H200)
    replace = msgspec.structs.replace
    with refuses(SpaceError):
        check_resources(replace(artifact, block=1024, facts=CompilerFacts(78)), H200)
    with refuses(SpaceError):
        check_resources(replace(artifact, shared_bytes=300000), H200)
    with refuses(SpaceError):
        check_resources(replace(artifact, block=2048), H200)
    assert read_image(artifact)
    (tmp_path / artifact.image).write_bytes(b"x")
    with refuses(anatune.AnatuneError):
        read_image(artifact)


def test_wrong_arguments():
    with refuses(SpaceError):
        measurer(l2="cold")
    with refuses(DeviceError):
        GpuMeasurer(WORKLOAD, anatune.hardware("xeon_gold_6230r"))
