"""Damaged compiled code is thrown away and made again; where nothing can be kept, it is compiled all the same."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from anatune.numerics import _code_cache, _jit
from anatune.numerics._code_cache import keep_code

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")


def twice(value):
    return 2 * value


@pytest.fixture(autouse=True)
def told_anew():
    _code_cache._say_once.cache_clear()


@pytest.fixture
def compiled(tmp_path):
    """Call the function as a new process would, with a dispatcher that has only the folder; return the hits."""

    def call(folder=tmp_path / "numerics-1"):
        dispatcher = numba.njit(twice)
        keep_code(dispatcher, twice, folder)
        assert dispatcher(21) == 42
        return sum(dispatcher.stats.cache_hits.values())

    return call


def files(tmp_path, ending):
    paths = list((tmp_path / "numerics-1").glob(f"*.{ending}"))
    assert len(paths) == 1
    return paths[0]


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def test_code_is_kept(compiled, caplog):
    assert [compiled(), compiled()] == [0, 1]
    assert not caplog.records


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize(
    "damage",
    [
        flipped,
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:40],
        lambda content: b"\x80" * 99,
    ],
)
def test_damaged_files_are_made_again(compiled, tmp_path, caplog, ending, damage):
    compiled()
    path = files(tmp_path, ending)
    path.write_bytes(damage(path.read_bytes()))
    assert [compiled(), compiled()] == [0, 1]
    assert [record.getMessage() for record in caplog.records] == [
        f"compiled code in {path.parent} was damaged; it is compiled again"
    ]


def test_a_missing_data_file_is_made_again_without_a_word(compiled, tmp_path, caplog):
    compiled()
    files(tmp_path, "nbc").unlink()
    assert [compiled(), compiled()] == [0, 1]
    assert not caplog.records


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_a_folder_in_a_file_s_place(compiled, tmp_path, caplog, ending):
    compiled()
    path = files(tmp_path, ending)
    path.unlink()
    path.mkdir()
    assert compiled() == 0
    assert "cannot be saved" in caplog.records[-1].getMessage()


def test_no_place_for_files(compiled, caplog):
    with caplog.at_level(logging.WARNING):
        assert compiled(_jit.Path("/dev/null/numerics-1")) == 0
    assert "(not a directory): every run compiles it; set NUMBA_CACHE_DIR" in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="file sizes are limited as POSIX does")
def test_a_full_disk(compiled, tmp_path, caplog):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        assert compiled() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be saved" in caplog.text
    assert not list((tmp_path / "numerics-1").glob("*.tmp.*"))
    assert [compiled(), compiled()] == [0, 1]


def test_an_edit_in_any_room_makes_a_new_folder(tmp_path, monkeypatch):
    for part in ("numerics", "templates"):
        source = Path(_jit.__file__).parents[1] / part
        shutil.copytree(source, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(_jit, "__file__", str(tmp_path / "numerics/_jit.py"))
    folders = [_jit.cache_folder()]
    edited = tmp_path / "templates/cuda/times/time.py"
    with edited.open("a") as file:
        file.write("# edited\n")
    folders.append(_jit.cache_folder())
    edited.rename(tmp_path / "templates/cpu/times/time.py")
    folders.append(_jit.cache_folder())
    assert len(set(folders)) == 3


def multiplied(module, factor):
    scope = {"__name__": module}
    exec(compile(f"def times(value):\n    return {factor} * value\n", "time.py", "exec"), scope)
    return scope["times"]


def test_functions_of_one_name_in_files_of_one_name_have_their_own_code(tmp_path):
    functions = [multiplied("anatune.templates.cuda.times.time", 2), multiplied("anatune.templates.thin.times.time", 3)]
    for hits in (0, 1):
        for function, expected in zip(functions, (42, 63), strict=True):
            dispatcher = numba.njit(function)
            keep_code(dispatcher, function, tmp_path)
            assert dispatcher(21) == expected
            assert sum(dispatcher.stats.cache_hits.values()) == hits
    assert sorted({path.name.split(".")[0] for path in tmp_path.glob("*.nbi")}) == ["cuda", "thin"]


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("is_older", [False, True])
def test_code_of_another_function_or_of_older_sources_is_not_run(tmp_path, caplog, ending, is_older):
    modules = "anatune.templates.cuda.times.time", "anatune.templates.cuda.times.other"
    places = [
        (tmp_path / "numerics-1", modules[0], 2),
        (tmp_path / ("numerics-0" if is_older else "numerics-1"), modules[not is_older], 3),
    ]

    def hits(folder, module, factor):
        dispatcher, function = numba.njit(multiplied(module, factor)), multiplied(module, factor)
        keep_code(dispatcher, function, folder)
        assert dispatcher(21) == 21 * factor
        return sum(dispatcher.stats.cache_hits.values())

    files = []
    for arguments in places:
        before = set(tmp_path.rglob(f"*.{ending}"))
        assert [hits(*arguments), hits(*arguments)] == [0, 1]
        files += set(tmp_path.rglob(f"*.{ending}")) - before
    first, second = files
    shutil.copy(second, first)
    assert [hits(*places[0]), hits(*places[0])] == [0, 1]
    assert "was damaged; it is compiled again" in caplog.text


def test_processes_that_write_at_once_take_no_name_of_each_other(tmp_path):
    """Both see an empty index: the code of each key lies in a file of its own all the same."""
    files = [_code_cache._CodeFile(str(tmp_path), "f", "stamp") for _ in "ab"]
    for file, key in zip(files, ("float64", "int64"), strict=True):
        file._load_index = dict
        file.save(key, f"code for {key}")
        del file._load_index
    reader = _code_cache._CodeFile(str(tmp_path), "f", "stamp")
    assert [reader.load(key) for key in ("float64", "int64")] == [None, "code for int64"]
    files[0].save("float64", "code for float64")
    assert [reader.load(key) for key in ("float64", "int64")] == ["code for float64", "code for int64"]
    assert len({path.name for path in tmp_path.glob("*.nbc")}) == 2


def test_without_a_home_nothing_is_kept(tmp_path):
    code = (
        "import pathlib\n"
        "def home():\n    raise RuntimeError('no home')\n"
        "pathlib.Path.home = home\n"
        "from anatune.numerics import _jit\n"
        "from anatune.templates.cuda.times import shared_memory\n"
        "assert _jit.cache_folder() is None and not _jit.has_cached_code('')\n"
    )
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    done = subprocess.run([sys.executable, "-c", code], env=kept, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
