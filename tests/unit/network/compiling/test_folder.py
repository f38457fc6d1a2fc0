"""Folders of compiled models: one path for several models, damage of every kind, saves that are interrupted."""

import copy
import json
import re
import signal
import subprocess
import sys
import textwrap

import msgspec
import numpy as np
import pytest

import anatune
from anatune.errors import AnatuneError, RecordError, RunError
from tests.unit.network.compiling import folders, models
from tests.wording import refuses

pytest.importorskip("tvm")
pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Return two models that differ in code alone, an input, and what each computes."""
    place = tmp_path_factory.mktemp("onnx")
    made = []
    for operator in ("Relu", "Sigmoid"):
        models.onnx_network(place / "network.onnx", operator=operator)
        made.append(anatune.compile(str(place / "network.onnx"), threads=1, check=False))
    x = made[0].random_inputs()[0]
    results = [model(x) for model in made]
    assert not np.array_equal(*results)
    return *made, x, *results


@pytest.fixture
def folder(two, tmp_path):
    two[0].save(tmp_path / "model")
    return tmp_path / "model"


def file_of(folder, kind):
    (path,) = folder.glob(f"{kind}-*")
    return path


# ---- one path, several models ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mapped", [True, False])
def test_a_path_that_was_used_before_gives_the_model_that_is_there_now(two, folder, mapped):
    first, second, x, *wanted = two
    loaded = anatune.load(folder, mapped=mapped)
    np.testing.assert_array_equal(loaded(x), wanted[0])
    second.save(folder)
    np.testing.assert_array_equal(anatune.load(folder, mapped=mapped)(x), wanted[1])
    del loaded
    first.save(folder)
    np.testing.assert_array_equal(anatune.load(folder, mapped=mapped)(x), wanted[0])


def test_a_relative_path_is_of_the_present_folder(two, tmp_path, monkeypatch):
    *both, x, _, _ = two
    for model, want, name in zip(both, two[3:], ("a", "b"), strict=True):
        (tmp_path / name).mkdir()
        model.save(tmp_path / name / "model")
        monkeypatch.chdir(tmp_path / name)
        np.testing.assert_array_equal(anatune.load("model")(x), want)
        monkeypatch.chdir(tmp_path / name / "model")
        np.testing.assert_array_equal(anatune.load(".")(x), want)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_loaded_model_stays_itself_when_another_is_saved_over_it(two, folder, tmp_path, mapped):
    _, second, x, want, _ = two
    loaded = anatune.load(folder, mapped=mapped)
    second.save(folder)
    np.testing.assert_array_equal(loaded(x), want)
    loaded.save(tmp_path / "again")
    np.testing.assert_array_equal(anatune.load(tmp_path / "again")(x), want)
    loaded.save(folder)
    np.testing.assert_array_equal(anatune.load(folder)(x), want)


def test_saving_replaces_a_model_and_nothing_else(two, tmp_path):
    first, second, x, _, want = two
    first.save(tmp_path / "model")
    second.save(tmp_path / "model")
    second.save(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert sorted(path.suffix for path in (tmp_path / "model").iterdir()) == [".bin", ".json", ".so"]
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with refuses(RecordError):
        first.save(tmp_path / "model")
    np.testing.assert_array_equal(anatune.load(tmp_path / "model")(x), want)
    with refuses(RecordError):
        first.save(tmp_path / "missing" / "model")
    (tmp_path / "file").write_text("mine")
    with refuses(RecordError):
        first.save(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model"]


@pytest.mark.parametrize("place", [5, "", "a\0b", b"model"])
def test_paths_that_are_none(two, place):
    with refuses(RecordError):
        anatune.load(place)
    with refuses(RecordError):
        two[0].save(place)


# ---- saves that are interrupted -------------------------------------------------------------------------------

_KILLED = """
import os, signal, sys
import anatune
source, target, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = anatune.load(source)
replace = os.replace
def counted(*paths):
    global count
    if not count:
        os.kill(os.getpid(), signal.SIGKILL)
    count -= 1
    replace(*paths)
os.replace = counted
model.save(target)
"""


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_save_that_is_killed_leaves_the_model_of_before(two, folder, tmp_path, steps):
    _, second, x, *wanted = two
    second.save(tmp_path / "other")
    words = [sys.executable, "-c", _KILLED, str(tmp_path / "other"), str(folder), str(steps)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(list(folder.iterdir())) > 3
    np.testing.assert_array_equal(anatune.load(folder)(x), wanted[0])
    second.save(folder)
    np.testing.assert_array_equal(anatune.load(folder)(x), wanted[1])
    assert len(list(folder.iterdir())) == 3


def test_a_save_that_fails_leaves_what_was_there(two, folder, tmp_path, monkeypatch):
    first, second, x, want, _ = two
    before = {path.name for path in folder.iterdir()}
    folders.fill_disk(monkeypatch)
    for model, place in ((first, folder), (second, folder), (second, tmp_path / "new")):
        with refuses(RecordError):
            model.save(place)
    assert {path.name for path in folder.iterdir()} == before
    assert not (tmp_path / "new").exists()
    np.testing.assert_array_equal(anatune.load(folder)(x), want)


@pytest.mark.slow
def test_processes_that_save_and_load_at_once_see_whole_models(two, folder, tmp_path):
    _, second, x, *wanted = two
    second.save(tmp_path / "other")
    program = textwrap.dedent(
        f"""
        import anatune
        models = [anatune.load({str(folder)!r}), anatune.load({str(tmp_path / "other")!r})]
        print("ready", flush=True)
        while True:
            for model in models:
                model.save({str(folder)!r})
        """
    )
    saving = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in saving:
            assert process.stdout.readline() == b"ready\n"
        seen = set()
        for _ in range(100):
            result = anatune.load(folder)(x)
            matches = [number for number, want in enumerate(wanted) if np.array_equal(result, want)]
            assert len(matches) == 1
            seen.update(matches)
        assert [process.poll() for process in saving] == [None, None]
        assert seen == {0, 1}
    finally:
        for process in saving:
            process.kill()
            process.wait()
            process.stdout.close()


# ---- damage ---------------------------------------------------------------------------------------------------


def refused(folder, error=RecordError):
    with refuses(error) as caught:
        anatune.load(folder)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_weights_that_are_read_need_their_file_no_more(two, folder):
    x, want = two[2:4]
    model = anatune.load(folder, mapped=False)
    path = file_of(folder, "weights")
    path.write_bytes(bytes(path.stat().st_size))
    np.testing.assert_array_equal(model(x), want)
    assert path.name in refused(folder)


@pytest.mark.parametrize("kind", ["weights", "model"])
@pytest.mark.parametrize("mapped", [True, False])
def test_flipped_bits_of_the_large_files_are_found(folder, kind, mapped):
    path = file_of(folder, kind)
    whole = path.read_bytes()
    for at in (0, *np.random.default_rng(0).integers(0, len(whole), 20), len(whole) - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 128
        path.write_bytes(damaged)
        with pytest.raises(RecordError, match=re.escape(path.name)):
            anatune.load(folder, mapped=mapped)
    for size in (0, 1, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(RecordError, match=re.escape(path.name)):
            anatune.load(folder, mapped=mapped)
    path.unlink()
    with pytest.raises(RecordError, match=re.escape(path.name)):
        anatune.load(folder, mapped=mapped)
    path.mkdir()
    with pytest.raises(RecordError, match=re.escape(path.name)):
        anatune.load(folder, mapped=mapped)


def test_flipped_bits_of_the_summary_are_found(folder):
    path = folder / "model.json"
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << random.integers(8)
        path.write_bytes(damaged)
        with pytest.raises(RecordError, match=re.escape(path.name)) as caught:
            anatune.load(folder)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b'{"format": 1, "version": "0.1.0"}',
        b'{"format": 99}',
        b'{"format": 3}',
        b'{"format": 1e400}',
        b'{"format": ' + b"9" * 5000 + b"}",
        b'{"a":' * 100_000,
        b'{"format": 3, "contents": ' + b"[" * 100_000,
    ],
    ids=["empty", "no text", "null", "former", "later", "alone", "large", "long", "deep", "open"],
)
def test_summaries_that_are_none(folder, text):
    (folder / "model.json").write_bytes(text)
    assert "model.json" in refused(folder)


_DEEP = json.loads("[" * 400 + "]" * 400)
_VALUES = [
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, -(10**30), 1.5, 1e308, float("nan"), float("inf"), "", "x",
    "\x1b[31m", [], {}, [1], {"a": 1}, _DEEP,
]  # fmt: skip


def places(tree, at=()):
    """Yield the way to each field of plain values, of lists to the first two."""
    fields = tree.items() if isinstance(tree, dict) else enumerate(tree[:2]) if isinstance(tree, list) else ()
    for key, value in fields:
        yield (*at, key)
        yield from places(value, (*at, key))


def edits(whole):
    """Yield the way to each field, and plain values with another value there."""
    for place in places(whole):
        for value in _VALUES:
            changed = copy.deepcopy(whole)
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            if type(inner[place[-1]]) is type(value) and inner[place[-1]] == value:
                continue
            inner[place[-1]] = value
            yield place, changed


@pytest.mark.parametrize(
    ("words", "others"),
    [('"offset": 0', '"offset": 64'), ('"is_tuple": false', '"is_tuple": true'), ('"library": "', '"library": "0')],
)
def test_values_of_a_summary_that_are_edited_are_noticed(folder, words, others):
    path = folder / "model.json"
    whole = path.read_text()
    assert words in whole
    path.write_text(whole.replace(words, others, 1))
    assert "model.json" in refused(folder)


def test_edits_with_a_digest_of_their_own_are_refused_or_mean_something(two, folder):
    """Where the digest is right, types and ranges are looked at; neither loading nor running raises anything else."""
    x, want = two[2:4]
    loaded = 0
    for place, changed in edits(folders.contents(folder)):
        folders.signed(folder, changed)
        try:
            model = anatune.load(folder)
            result = model(x)
        except AnatuneError as error:
            assert str(error).isprintable(), place  # noqa: PT017 - that any other is raised is the failure
            continue
        loaded += 1
        assert model.report()
        if place[-1] != "is_tuple":
            np.testing.assert_array_equal(result, want)
    assert loaded


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("weights", 0, "offset"), 64, "a weight ends at byte {beyond} of {size}"),
        (("weights", 0, "offset"), -64, "Expected `int` >= 0"),
        (("weights", 0, "shape"), [-1], "Expected `int` >= 0"),
        (("weights", 0, "dtype"), "O", "Expected `str` matching regex"),
        (("weight_bytes",), None, "has {size:,} bytes, expected {more:,}"),
        (("threads",), 10**6, "Expected `int` <= 4096"),
    ],
)
def test_ranges_of_a_summary(folder, place, value, said):
    changed = folders.contents(folder)
    inner = changed["model"]
    size = inner["weight_bytes"]  # how long rows of packed weights are depends on the machine
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = size + 1 if value is None else value
    folders.signed(folder, changed)
    with pytest.raises(RecordError) as caught:
        anatune.load(folder)
    assert said.format(size=size, beyond=size + 64, more=size + 1) in str(caught.value)


def test_a_folder_for_another_processor_says_what_is_lacking(folder):
    changed = folders.contents(folder)
    changed["model"]["features"] = ["avx", "amx-of-tomorrow"]
    folders.signed(folder, changed)
    with pytest.raises(RunError, match="amx-of-tomorrow"):  # the message names this machine, too
        anatune.load(folder)


def test_folders_that_are_none(tmp_path):
    refused(tmp_path / "none")
    refused(tmp_path)


def test_what_tvm_refuses_at_a_run_is_one_line(two, folder):
    changed = folders.contents(folder)
    changed["model"]["weights"] = []
    folders.signed(folder, changed)
    with refuses(RunError) as caught:
        anatune.load(folder)(two[2])
    assert "\n" not in str(caught.value)


def test_names_that_are_no_text_do_not_reach_the_terminal(two, folder):
    changed = folders.contents(folder)
    changed["model"]["inputs"][0]["name"] = "\x1b[31mred\u202e"
    changed["model"]["kernels"][0]["workload"] = "\x9b31m"
    folders.signed(folder, changed)
    model = anatune.load(folder)
    for text in (model.report(), repr(model)):
        assert r"\x1b[31mred\u202e" in text
        assert not {"\x1b", "\x9b", "\u202e"} & set(text)
    with refuses(RunError):
        model(two[2][:, :1])


def test_a_summary_is_what_was_saved(two, folder):
    assert anatune.load(folder).summary == two[0].summary
    assert msgspec.convert(folders.contents(folder)["model"], type(two[0].summary)) == two[0].summary
