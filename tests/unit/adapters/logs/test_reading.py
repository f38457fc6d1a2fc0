"""Logs of other tuners: what they state is believed and checked, what does not fit is counted by reason."""

import json

import pytest

import anatune
from anatune.adapters.logs import read_foreign
from anatune.core.trial import Outcome
from anatune.errors import RecordError, SpecError
from anatune.records.export import is_export
from tests.unit.adapters.logs.making import ansor, autotvm, metaschedule, target_of, written
from tests.wording import check_texts, refuses

MATMUL = anatune.matmul(64, 64, 64)
GPU = anatune.hardware("rtx3090")
TOPHUB = ("1080ti", "tx2", "titanx", "v100", "nano", "gfx906", "mystery", "1080ti")


def tophub(path):
    """Write a log of several devices, as TopHub's are, with its comments."""
    lines = [json.dumps(target_of(autotvm(), f"cuda -model={name}")) for name in TOPHUB]
    path.write_text("# TopHub\n\n" + "\n".join(lines) + "\n  # end\n")
    return path


def test_the_devices_that_a_log_names_are_believed(tmp_path):
    found = read_foreign(tophub(tmp_path / "cuda.log"))
    names = [one.trial.schedule.hardware.name for one in found.trials]
    assert names == ["gtx1080ti", "tx2", "jetson_nano", "gtx1080ti"]
    reasons = sorted(found.left_out)
    check_texts(reasons)
    assert set(found.left_out.values()) == {1}


@pytest.mark.parametrize(("hw", "lines"), [("gtx1080ti", [3, 10]), ("v100_pcie", [6]), ("titanx_pascal", [5])])
def test_other_devices_than_the_given_are_left_out(tmp_path, hw, lines):
    found = read_foreign(tophub(tmp_path / "cuda.log"), anatune.hardware(hw))
    assert {one.trial.schedule.hardware.name for one in found.trials} == {hw}
    assert [one.trial.number + 1 for one in found.trials] == lines
    assert all(text.startswith("measured on") for text in found.left_out)
    assert sum(found.left_out.values()) == len(TOPHUB) - len(lines)


def test_what_is_not_said_is_asked_for(tmp_path):
    device = read_foreign(written(tmp_path / "a.json", autotvm()))
    workload = read_foreign(written(tmp_path / "b.json", ansor()), GPU)
    check_texts(device.left_out)
    check_texts(workload.left_out)
    assert not device.trials + workload.trials


def test_kinds_and_architectures_contradict(tmp_path):
    lines = [target_of(autotvm(), text) for text in (
        "llvm -mcpu=skylake-avx512", "cuda -arch=sm_75", "rocm -model=gfx906", "opencl -device=mali -model=rk3399",
        "cuda -arch=sm_86", '{"kind": "cuda", "arch": "sm_86", "tag": ""}', "nvidia/geforce-rtx-3090",
    )]  # fmt: skip
    found = read_foreign(written(tmp_path / "log.json", *lines), GPU)
    assert len(found.trials) == 3
    check_texts(found.left_out)


def test_a_damaged_line_costs_itself_only(tmp_path):
    path = written(tmp_path / "log.json", ansor())
    path.write_text("{cut o\n" + path.read_text() + '{"i": 3}\n\n' + path.read_text() + '[["cuda"], 5]\n{"r": [')
    found = read_foreign(path, GPU, MATMUL)
    assert len(found.trials) == 2
    assert found.left_out == {"damaged or of an unknown version (line 1, 3, 6, ...)": 4}


@pytest.mark.parametrize("text", ["", "hello\n", "{}\n", "[1, 2]\n", '{"cache": 3', '{"cache": 3}', '{"results": {}}'])
def test_other_files_are_one_line(tmp_path, text):
    (tmp_path / "log.json").write_text(text)
    with refuses(RecordError):
        read_foreign(tmp_path / "log.json", GPU, MATMUL)


def test_missing_files_folders_and_exports_are_refused(tmp_path):
    with refuses(RecordError):
        read_foreign(tmp_path / "none.json", GPU, MATMUL)
    with refuses(RecordError):
        read_foreign(tmp_path, GPU, MATMUL)
    own = written(tmp_path / "own.jsonl", {"kind": "trial", "format": 1})
    assert is_export(own)
    assert not is_export(written(tmp_path / "log.json", autotvm()))
    with refuses(RecordError):
        read_foreign(own, GPU)


def test_gpu_schedules_are_none_of_a_cpu(tmp_path):
    found = read_foreign(written(tmp_path / "log.json", ansor()), anatune.hardware("ryzen_3700x"), MATMUL)
    assert list(found.left_out) == ["measured with target 'cuda', but ryzen_3700x is a CPU"]


def test_failures_have_no_time(tmp_path):
    lines = [autotvm(error=number, times=(1e10,)) for number in range(1, 9)] + [autotvm(times=())]
    found = read_foreign(written(tmp_path / "log.json", *lines), GPU)
    assert {one.trial.measurement.time_s for one in found.trials} == {None}
    assert [one.trial.measurement.outcome for one in found.trials][:2] == [Outcome.INVALID, Outcome.BUILD_ERROR]


def test_metaschedule_of_other_templates_is_left_out(tmp_path):
    pipelined, deep, cpu = metaschedule(), metaschedule(), metaschedule()
    pipelined[1][0][0].append(["Annotate", ["l1", [0, 0, 2]], ["software_pipeline_stage"], []])
    deep[1][0][0].append(["Annotate", ["l1", [0, 0, 3]], ["software_pipeline_stage"], []])
    cpu[1][0][1][:3] = [[1, [4, 1, 8, 4]], [2, [2, 1, 16, 2]], [3, [8, 8]]]
    found = read_foreign(written(tmp_path / "log.json", pipelined, deep, cpu, metaschedule()), GPU, MATMUL)
    assert [one.trial.schedule.options for one in found.trials] == [{"stages": 3, "pad": 0}, {}]
    assert set(found.left_out.values()) == {1}
    check_texts(found.left_out)


def test_a_spec_that_cannot_be_read_is_no_fault_of_the_log(tmp_path, monkeypatch):
    folder = tmp_path / "anatune" / "hwspecs"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("name = ")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with refuses(SpecError):
        read_foreign(tophub(tmp_path / "cuda.log"))
    assert len(read_foreign(written(tmp_path / "log.json", autotvm()), GPU).trials) == 1
