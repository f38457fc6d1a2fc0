"""GPU schedules through the compiler in worker processes: outcomes, limits, corrected rankings."""

import time

import msgspec
import pytest

pytest.importorskip("tvm", reason="code generation needs apache-tvm")
pytest.importorskip("cuda.bindings.nvrtc", reason="compiling CUDA C needs cuda-bindings")

import anatune
from anatune import api
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.trial import Outcome
from anatune.errors import BuildError, MissingDependencyError, SpaceError
from anatune.measure.cuda.compiler import COMPILE_LIMITS, check_compiler, compile_ranking, compile_schedules
from anatune.templates.cuda.program.nest import program_key
from tests.naive_gpu import gpu
from tests.wording import refuses

MATMUL = anatune.matmul(64, 48, 32)
SPACE = anatune.space(MATMUL, gpu("rtx3090"))
TILES = {"i": (4, 1, 8, 1, 2), "j": (3, 1, 16, 1, 1), "k": (4, 4, 2)}
SHORT = msgspec.structs.replace(COMPILE_LIMITS, build_s=1.5)
STAND_IN = "tests.unit.measure.compile_stand_ins:"


def schedules(*unrolls):
    return [SPACE.schedule(TILES, unroll) for unroll in unrolls]


def test_outcomes():
    asked = schedules(64, 0, 512, 1024, 16)
    entry = f"{STAND_IN}by_unroll"
    found = dict(compile_schedules(asked, limits=SHORT, num_processes=2, entry=entry))
    assert [found[at].outcome for at in range(5)] == [
        Outcome.BUILD_ERROR,
        Outcome.OK,
        Outcome.BUILD_TIMEOUT,
        Outcome.BUILD_ERROR,
        Outcome.OK,
    ]
    assert found[0].message == "ptxas says no"
    assert "not finished after 1.5 s" in found[2].message
    assert "ended with status 3" in found[3].message
    assert found[1].facts.registers == 200


def test_invalid_and_missing():
    ((_, result),) = compile_schedules(schedules(0), entry=f"{STAND_IN}impossible")
    assert (result.outcome, result.message) == (Outcome.INVALID, "factors do not fit")
    with refuses(MissingDependencyError):
        list(compile_schedules(schedules(0), entry=f"{STAND_IN}nothing_installed"))


def test_time_limit_leaves_the_rest_out():
    began, long = time.monotonic(), msgspec.structs.replace(COMPILE_LIMITS, build_s=600.0)
    more = {"num_processes": 1, "time_limit_s": 2.0, "entry": f"{STAND_IN}by_unroll"}
    assert dict(compile_schedules(schedules(512, 0), limits=long, **more)) == {}
    assert time.monotonic() - began < 300  # of the 600 s that the first one takes


def test_bad_input():
    assert list(compile_schedules([])) == []
    with refuses(SpaceError):
        list(compile_schedules(["i=8x2"]))
    with refuses(BuildError):
        list(compile_schedules([anatune.space(MATMUL, gpu("k20")).schedule(TILES)]))
    with refuses(BuildError):
        anatune.plan(MATMUL, gpu("mi50"), compile=2)
    with refuses(SpaceError):
        anatune.plan(MATMUL, anatune.hardware("ryzen_7950x"), compile=2)
    for count in (-1, 1.5, True, "3", 10**9):
        with refuses(SpaceError):
            anatune.plan(MATMUL, gpu("rtx3090"), compile=count)


def test_compiler_and_model_agree_on_shared_memory():
    (schedule,) = schedules(0)
    facts = anatune.inspect(schedule)
    (predicted,) = api.model(MATMUL, gpu("rtx3090")).predictions(SPACE.point_of(schedule)[None])
    assert set(facts) == set(CompilerFacts(1).numbers()) | {"flop"}
    assert facts["shared_bytes"] == predicted.resources["shared_bytes_per_block"]
    assert facts["flop"] == MATMUL.flop
    assert 16 <= facts["registers"] <= 96
    assert facts["spill_bytes"] == facts["local_bytes"] == 0


def test_programs_are_told_apart():
    depths = schedules(512, 1024)
    assert program_key(depths[0]) == program_key(depths[1])
    assert program_key(depths[0]) != program_key(SPACE.schedule({**TILES, "k": (4, 2, 4)}, 512))
    assert program_key(depths[0]) != program_key(SPACE.schedule(TILES, 512, {"A": 4}))


def test_ranking_is_corrected():
    model = api.model(MATMUL, gpu("rtx3090"))
    ranking = [model.space.schedule_of(point) for point in model.rank(40).points]
    calls = []
    result = compile_ranking(
        {"cuda": model},
        ranking,
        3,
        progress=lambda *counts: calls.append(counts),
        entry=f"{STAND_IN}by_unroll",
        limits=SHORT,
    )
    assert [entry.rank_before for entry in result.schedules] == sorted(entry.rank_before for entry in result.schedules)
    assert len({program_key(entry.schedule) for entry in result.schedules}) == 3
    assert calls[-1] == (3, 3)
    for entry in result.ranked:
        assert entry.after.resources["registers_per_thread"] == 200
        assert entry.after.resources["shared_bytes_per_block"] == 1024
        assert entry.after.occupancy <= 10 * 32 / 1536  # 65536 registers hold 10 warps of 200 each
    assert len(result.failed) + len(result.ranked) == 3


def test_plan_with_compiler():
    answer = anatune.plan(MATMUL, gpu("rtx3090"), 4, compile=3)
    compiled = answer.compilation
    assert len(answer.schedules) == len(answer.predictions) == 4
    assert answer.schedules[:3] == [entry.schedule for entry in compiled.ranked]
    times = [prediction.time_s for prediction in answer.predictions[:3]]
    assert times == sorted(times)
    for entry, prediction in zip(compiled.ranked, answer.predictions, strict=False):
        assert prediction.resources["registers_per_thread"] == entry.facts.registers
    assert answer.schedules[3] not in answer.schedules[:3]
    tree = answer.to_dict()["compilation"]
    assert tree["num_compiled"] == len(tree["programs"]) == 3
    assert sorted(program["after"]["rank"] for program in tree["programs"]) == [1, 2, 3]
    plain = anatune.plan(MATMUL, gpu("rtx3090"), 4)
    assert plain.compilation is None
    assert "compilation" not in plain.to_dict()


def test_nothing_compiles(monkeypatch):
    from anatune.measure.cuda import compiler as gpu_compiler

    refuse = f"{STAND_IN}impossible"
    original = gpu_compiler.compile_ranking
    monkeypatch.setattr(gpu_compiler, "compile_ranking", lambda *rest, **more: original(*rest, **more, entry=refuse))
    workload = anatune.matmul(1, 1, 1)
    with refuses(BuildError):
        anatune.plan(workload, gpu("rtx3090"), 1, compile=1000)


def test_all_missing_compilers_are_named_at_once(monkeypatch, tmp_path):
    def missing(name):
        def check(*_):
            raise MissingDependencyError(f"{name} is missing; pip install {name}")

        return check

    for module, function in {"cuda.artifact": "check_arch", "triton.artifact": "check_target"}.items():
        monkeypatch.setattr(f"anatune.codegen.{module}.{function}", missing(module))
    with refuses(MissingDependencyError):
        check_compiler(gpu("rtx3090"), ["cuda", "thin", "triton"])
    monkeypatch.setattr("anatune.named.import_optional", missing("onnx"))
    (tmp_path / "m.onnx").write_bytes(b"")
    with refuses(MissingDependencyError):
        anatune.compile(tmp_path / "m.onnx", hw="rtx3090")
    with refuses(MissingDependencyError):
        anatune.compile(tmp_path / "m.onnx", hw="rtx3090", precision="float16")
