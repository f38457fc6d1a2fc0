"""The checks at the library's doors: plain values come back, everything else is one line of the asked-for error."""

import math
from pathlib import Path

import numpy as np
import pytest

import anatune
from anatune import arguments
from anatune.errors import AnatuneError, RecordError, SpaceError, UnknownNameError
from anatune.measure.run import correctness
from anatune.measure.run import memory as room
from anatune.records.store import RecordStore
from anatune.templates.base.space import MOST_POINTS
from tests.wording import refuses

ODD = [None, "", "x", b"x", 1.5, math.nan, math.inf, True, np.True_, [], {}, object(), np.zeros(3), 10**5000, -(10**30)]
SMALL = anatune.matmul(8, 8, 8)


def one_line(error, least="expected"):
    text = str(error.value)
    assert least in text
    assert "\n" not in text
    assert len(text) < 400
    return text


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_integers(value):
    with pytest.raises(RecordError) as error:
        arguments.check_integer("f: n", value, 0, 7, RecordError)
    assert one_line(error).startswith("f: n is ")
    found = arguments.check_integer("n", np.uint8(7), 0, 7)
    assert (found, type(found)) == (7, int)


@pytest.mark.parametrize("value", [*ODD[1:4], *ODD[5:]], ids=range(len(ODD) - 2))
def test_seconds(value):
    with pytest.raises(SpaceError) as error:
        arguments.check_seconds("f: time_limit_s", value)
    one_line(error, "expected a number of seconds > 0")


def test_times_that_are_fine():
    assert [arguments.check_seconds("t", value) for value in (None, 2, 0.5, np.float32(0.5))] == [None, 2.0, 0.5, 0.5]
    with refuses(SpaceError):
        arguments.check_seconds("t", 10**29)


@pytest.mark.parametrize("value", [None, 5, b"x", "", "a\0b", "\ud800x", "a" * 256, "x/" + "é" * 128, object(), Path])
def test_paths(value):
    with pytest.raises(RecordError) as error:
        arguments.check_path("f: path", value, RecordError)
    one_line(error)


def test_paths_that_are_fine(tmp_path):
    assert arguments.check_path("p", "x/y") == Path("x/y")
    assert arguments.check_path("p", tmp_path) == tmp_path
    assert arguments.check_path("p", "\udcff") == Path("\udcff")  # a byte of a file's name that is no UTF-8


def test_choices_flags_and_functions():
    assert arguments.check_choice("c", "b", "abc") == "b"
    assert arguments.check_flag("f", np.False_) is False
    arguments.check_function("g", None)
    arguments.check_function("g", len)
    for value in (None, 5, ["a"], "d", {}):
        with refuses(UnknownNameError):
            arguments.check_choice("c", value, ("a", "b"), UnknownNameError)
    with refuses(SpaceError):
        arguments.check_flag("f", 1)
    with refuses(SpaceError):
        arguments.check_function("g", "len")


@pytest.mark.parametrize(
    "path", [":memory:", "file:x?mode=memory", "file::memory:?cache=shared", 5, "a\0b", "", "r" * 300]
)
def test_record_files_are_files(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecordError) as error:
        RecordStore(path)
    one_line(error)
    with pytest.raises(RecordError):
        anatune.tune(SMALL, anatune.hardware("host"), records=path)
    assert not list(tmp_path.iterdir())


HOST = anatune.hardware("host")
POINT = anatune.space(SMALL, "rtx3090").schedule({})


@pytest.mark.parametrize(
    "call",
    [
        lambda: anatune.plan(SMALL, "rtx3090", time_limit_s=10**29),
        lambda: anatune.plan(SMALL, "rtx3090", correction=None),
        lambda: anatune.plan(SMALL, "rtx3090", correction=b"none"),
        lambda: anatune.plan(SMALL, "rtx3090", distinct="no"),
        lambda: anatune.plan(SMALL, "rtx3090", progress=5),
        lambda: anatune.plan(SMALL, "rtx3090", template=["cuda"]),
        lambda: anatune.plan(SMALL, "x\0y"),
        lambda: anatune.plan(SMALL, "a" * 300 + ".toml"),
        lambda: anatune.predict(SMALL, "rtx3090", [POINT], correction=5),
        lambda: anatune.prune(SMALL, "rtx3090", diverse=None),
        lambda: anatune.prune(SMALL, "rtx3090", keep=10**5000, candidates=5),
        lambda: anatune.space(SMALL, "rtx3090").sample(10**12),
        lambda: anatune.space(SMALL, "rtx3090").sample(5, seed="x"),
        lambda: anatune.space(SMALL, "rtx3090").schedule({}, unroll=10**20),
        lambda: anatune.tune(SMALL, HOST, records=5),
        lambda: anatune.tune(SMALL, HOST, seed=2**63),
        lambda: anatune.tune(SMALL, HOST, limits={"run_s": 1}),
        lambda: anatune.tune(SMALL, HOST, device=1),
        lambda: anatune.tune(SMALL, HOST, backend="pycuda"),
        lambda: anatune.tune(SMALL, HOST, progress="yes"),
        lambda: anatune.tune(SMALL, HOST, strategy=["dgd"]),
        lambda: anatune.tune(SMALL, HOST, start={}),
        lambda: anatune.verify(POINT, seed="x"),
        lambda: anatune.verify(POINT, threads=10**9),
        lambda: anatune.build(POINT, threads=2.0),
        lambda: anatune.inspect(POINT, threads=None),
        lambda: correctness.random_inputs(SMALL, -1),
    ],
)
def test_library_calls(call):
    with pytest.raises(AnatuneError) as error:
        call()
    one_line(error, "")


def test_large_samples_are_drawn_in_parts():
    space = anatune.space(SMALL, "rtx3090")
    points = space.sample_points(100_000, 3)
    assert len(points) == 100_000 < MOST_POINTS
    assert (points[:50] == space.sample_points(50, 3)).all(axis=1).sum() < 50  # another number is another sample


@pytest.mark.parametrize("call", [anatune.tune, None])
def test_operands_that_do_not_fit_are_told_beforehand(monkeypatch, call):
    large = anatune.matmul(2147483647, 2147483647, 2147483647)
    with refuses(AnatuneError):
        anatune.tune(large, HOST) if call else room.check_runs_here(large, HOST, ["cpu"])
    monkeypatch.setattr(room, "free_bytes", lambda: 1 << 30)
    middle = anatune.matmul(8192, 8192, 16384)
    with pytest.raises(AnatuneError) as error:
        anatune.tune(middle, HOST) if call else correctness.random_inputs(anatune.matmul(16384, 16384, 1))
    text = one_line(error, " 1.0 GiB ")
    if call:
        assert " 1.2 GiB" in text
        assert " 3.8 GiB" in text
    assert anatune.plan(middle, "rtx3090", top_k=1).schedules  # planning needs no memory for them


def test_free_memory():
    free = room.free_bytes()
    assert free is None or 1 << 20 < free < 1 << 50
    assert room.needed_bytes(anatune.matmul(2, 3, 4), checked=False) == 4 * (2 * 4 + 4 * 3 + 2 * 3)
