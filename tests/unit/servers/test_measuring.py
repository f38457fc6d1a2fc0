"""Tiles measured on a GPU that is not there: the measurer pretends, or, once, the driver."""

import functools
import itertools
import json
from dataclasses import replace

import pytest

from anatune.core.hardware.files import hardware
from anatune.core.trial import Measurement, Outcome
from anatune.errors import DeviceError, RunError, SpaceError
from anatune.measure.cuda.measurer import GpuMeasurer
from anatune.measure.run.measurer import Limits
from anatune.measure.run.timing import TimingProtocol
from anatune.records.store import RecordStore
from anatune.servers.files import MANIFEST, ConfigRequest, write_configs
from anatune.servers.measuring import RECORDS, MeasureOptions
from anatune.servers.shapes import Experts, Product
from tests.unit.measure.fake_cuda import BACKEND, ENTRIES, STATE
from tests.unit.servers.pretended import Pretended
from tests.wording import refuses

H200 = hardware("h200")
SHAPE = Experts(4, 32, 64, 2)
QUICK = TimingProtocol(sample_s=0.0005, reference_s=0.0003, budget_s=0.005)
BUILDS = ENTRIES._replace(builder="tests.unit.measure.fake_cuda:build_triton")


def measuring(script=None, **more):
    counted = functools.partial(Pretended, script=script, count=itertools.count())
    return MeasureOptions(backend=BACKEND, host=H200, **{"measurer": counted, **more})


@pytest.fixture(autouse=True)
def _backend(monkeypatch):
    monkeypatch.setattr("anatune.tuning.places.local.LocalPlace.provenance", lambda *_: {"gpu": "NVIDIA H200"})


def written(folder, rows=(2, 16), keep=2, how=None, on_kernel=lambda done, total: None, **more):
    request = ConfigRequest("vllm", H200, (SHAPE,), rows=rows, keep=keep, **{"force": True, **more})
    return write_configs(request, folder, measuring=how or measuring(), on_kernel=on_kernel)


def recorded(path):
    with RecordStore(path, read_only=True) as store:
        return [record.trial for record in store.trials()]


def test_kernels_run_where_the_driver_is(tmp_path, monkeypatch):
    monkeypatch.setenv(STATE, str(tmp_path))
    limits = Limits(build_s=30, run_s=20)
    measurer = functools.partial(GpuMeasurer, protocol=QUICK, entries=BUILDS, limits=limits)
    (file,) = written(tmp_path / "out", rows=(2,), keep=1, how=measuring(measurer=measurer))
    trials = recorded(tmp_path / "out" / RECORDS)
    assert [trial.measurement.message for trial in trials] == [""] * 4
    assert file.choices[0].measured_s > 0


def test_the_fastest_of_the_list_is_written(tmp_path):
    told = []
    (file,) = written(tmp_path, on_kernel=lambda done, total: told.append((done, total)))
    entries = json.loads((tmp_path / file.path).read_text())
    trials = recorded(tmp_path / RECORDS)
    assert told[-1] == (len(trials), len(trials))
    for choice in file.choices:
        took = {}
        for trial in trials:
            own = trial.schedule
            if own.workload.attribute["tokens"] == choice.rows:
                tile = tuple(own.tiles[axis][-1] for axis in "mnk")
                key = (*tile, own.options["num_warps"], own.options["num_stages"], 1, own.options["group_m"])
                took[key] = took.get(key, 0.0) + trial.measurement.time_s
        assert len(took) == 3  # two of the model's, and the server's default
        assert choice.measured_s == pytest.approx(min(took.values()))
        assert choice.tile == min(took, key=took.__getitem__)
        assert choice.default_measured_s == pytest.approx(took[choice.default])
        assert choice.gain == choice.default_measured_s / choice.measured_s
        assert entries[str(choice.rows)]["BLOCK_SIZE_N"] == choice.tile[1]
        assert choice.why == ""
    predicted = json.loads((tmp_path / MANIFEST).read_text())["files"][file.path]["entries"]
    assert [one["measured_s"] for one in predicted] == [one.measured_s for one in file.choices]


def test_files_of_both_products_share_block_m(tmp_path):
    request = ConfigRequest("sglang", H200, (SHAPE,), rows=(2, 64), keep=4, triton="3.6.0", down=True, force=True)
    up, down = write_configs(request, tmp_path, measuring=measuring())
    for one, other in zip(up.choices, down.choices, strict=True):
        assert one.tile[0] == other.tile[0]
        assert one.measured_s == other.measured_s <= one.default_measured_s


def test_a_product_has_one_kernel(tmp_path):
    request = ConfigRequest("vllm", H200, (Product(256, 512),), rows=(8,), keep=2, force=True)
    (file,) = write_configs(request, tmp_path, measuring=measuring())
    assert file.choices[0].measured_s in {trial.measurement.time_s for trial in recorded(tmp_path / RECORDS)}


def test_what_was_measured_is_not_measured_again(tmp_path):
    (first,) = written(tmp_path, rows=(2,), keep=1)
    count = len(recorded(tmp_path / RECORDS))
    never = dict.fromkeys(range(9), AssertionError("measured again"))
    (again,) = written(tmp_path, rows=(2,), keep=1, how=measuring(never, records=tmp_path / RECORDS))
    assert again.choices == first.choices
    assert len(recorded(tmp_path / RECORDS)) == count
    with refuses(SpaceError):
        write_configs(ConfigRequest("vllm", H200, (SHAPE,), rows=(2,), force=True), tmp_path)


def test_rows_whose_tiles_fail_have_the_models_choice(tmp_path):
    (model,) = write_configs(
        ConfigRequest("vllm", H200, (SHAPE,), rows=(2, 16), keep=1, force=True), tmp_path / "model"
    )
    failed = dict.fromkeys(range(2), Measurement(Outcome.WRONG_RESULT, "off by 3"))
    (file,) = written(tmp_path / "out", keep=1, how=measuring(failed))
    first, second = file.choices
    assert (first.tile, first.measured_s) == (model.choices[0].tile, None)
    assert first.why == "wrong_result: off by 3"
    assert second.measured_s is not None
    (file,) = written(tmp_path / "out", keep=1, how=measuring({0: RunError("out of memory")}))  # the others go on
    assert [choice.why for choice in file.choices] == ["out of memory", ""]
    assert file.choices[0].measured_s is None


@pytest.mark.parametrize("what", [DeviceError("no device any more"), KeyboardInterrupt()])
def test_whatever_ends_it_files_and_records_stay(tmp_path, what):
    with pytest.raises(type(what)):
        written(tmp_path, keep=1, how=measuring({5: what}))
    ((path, file),) = json.loads((tmp_path / MANIFEST).read_text())["files"].items()
    assert set(json.loads((tmp_path / path).read_text())) == {"2", "16"}
    assert ["measured_s" in one for one in file["entries"]] == [True, False]
    assert len(recorded(tmp_path / RECORDS)) == 5


def entries_of(folder):
    ((path, file),) = json.loads((folder / MANIFEST).read_text())["files"].items()
    assert sorted(map(int, json.loads((folder / path).read_text()))) == [one["rows"] for one in file["entries"]]
    return {one["rows"]: one for one in file["entries"]}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_second_run_that_ends_early_keeps_what_was_measured(tmp_path, elsewhere):
    written(tmp_path, keep=1)
    before = entries_of(tmp_path)
    more = {"records": tmp_path / "other.sqlite"} if elsewhere else {}
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, keep=3, how=measuring({0: KeyboardInterrupt()}, **more))
    assert entries_of(tmp_path) == before


def test_records_that_no_file_has_yet_are_taken_first(tmp_path):
    written(tmp_path / "one", keep=1)
    how = measuring({0: DeviceError("gone")}, records=tmp_path / "one" / RECORDS)
    with pytest.raises(DeviceError):
        written(tmp_path / "two", rows=(2, 16, 32), keep=1, how=how)
    assert ["measured_s" in one for one in entries_of(tmp_path / "two").values()] == [True, True, False]


def test_rows_that_are_not_asked_for_stay(tmp_path):
    written(tmp_path, rows=(2, 16), keep=1)
    before = entries_of(tmp_path)
    (file,) = written(tmp_path, rows=(4,), keep=1)
    assert [choice.rows for choice in file.choices] == [2, 4, 16]
    after = entries_of(tmp_path)
    assert {rows: after[rows] for rows in before} == before
    with refuses(SpaceError):
        written(tmp_path, exponent=1.2)
    assert entries_of(tmp_path) == after


def test_a_file_of_its_own_for_the_down_product_has_the_same_rows(tmp_path):
    request = ConfigRequest("sglang", H200, (SHAPE,), rows=(2, 64), triton="3.6.0", force=True)
    write_configs(request, tmp_path, measuring=measuring())
    with refuses(SpaceError):
        write_configs(replace(request, down=True, rows=(2,)), tmp_path, measuring=measuring())
    up, down = write_configs(replace(request, down=True), tmp_path, measuring=measuring())
    assert [one.tile[0] for one in up.choices] == [one.tile[0] for one in down.choices]


def test_what_does_not_fit_the_memory_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("anatune.measure.run.memory.free_bytes", lambda: 0)
    (file,) = written(tmp_path)
    assert [choice.measured_s for choice in file.choices] == [None, None]
    assert "of memory are free" in file.choices[0].why


def test_without_the_gpu_one_line_says_so(tmp_path):
    request = ConfigRequest("vllm", H200, (SHAPE,), force=True)
    with refuses(DeviceError) as error:
        write_configs(request, tmp_path / "out", measuring=MeasureOptions())
    assert "\n" not in str(error.value)
    with refuses(DeviceError):
        MeasureOptions(host=hardware("h100_sxm")).check(H200)
    with refuses(DeviceError):
        MeasureOptions().check(hardware("mi300x"))
    uneven = ConfigRequest("vllm", H200, (Experts(4, 64, 64, 2, "fp8_w8a8", (64, 64)),), force=True)
    with refuses(SpaceError):
        write_configs(uneven, tmp_path / "out", measuring=measuring())
    assert not (tmp_path / "out").exists()
