"""Machine code on disk runs without numba; where it is damaged or does not fit, it is compiled again."""

import logging
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from anatune.numerics import _jit, _machine_code
from anatune.numerics._jit import CompiledFunction, Helper

pytestmark = pytest.mark.skipif(_jit._is_disabled, reason="nothing is compiled")
FOLDER = "numerics-1"


def twice(value):
    return 2 * value


@pytest.fixture(autouse=True)
def told_anew():
    _machine_code._say_once.cache_clear()


class Calls:
    """Calls functions as a new process would, and counts compilations."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch, self.count = folder / FOLDER, monkeypatch, 0

    def on_start(self, name):
        self.count += "test_machine_code" in name or "times" in name

    def on_end(self):
        pass

    def __call__(self, function, *arguments, folder=None):
        """Return what the function returns, and how many functions were compiled."""
        self.count = 0
        self.monkeypatch.setattr(_jit, "_FOLDER", folder or self.folder)
        self.monkeypatch.setattr(_jit, "watchers", [self])
        return CompiledFunction(function)(*arguments), self.count


@pytest.fixture
def call(tmp_path, monkeypatch):
    return Calls(tmp_path, monkeypatch)


def only_file(tmp_path):
    (path,) = (tmp_path / FOLDER).glob("*.code")
    return path


def flip_byte(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def test_code_is_kept_for_each_type(call, caplog):
    assert [call(twice, value) for value in (21, 21, 2.5, 2.5)] == [(42, 1), (42, 0), (5.0, 1), (5.0, 0)]
    assert not caplog.records


class Inner(NamedTuple):
    matrix: np.ndarray
    scale: float


class Outer(NamedTuple):
    is_doubled: bool
    inner: Inner
    names: np.ndarray


def fill_product(record, out):
    total = 0.0
    for i in range(out.shape[0]):
        row = record.inner.matrix[i]
        for j in range(row.shape[0]):
            total += row[j] / record.names[j]
        out[i] = total * record.inner.scale * (2.0 if record.is_doubled else 1.0)
    return out.shape[0], total


@pytest.mark.parametrize("is_doubled", [False, True])
@pytest.mark.parametrize("part", [np.s_[:, :], np.s_[::2, 1::3]])
def test_records_and_strided_arrays_give_the_bits_of_numpy(call, is_doubled, part):
    generator = np.random.default_rng(1)
    matrix, out = generator.standard_normal((9, 11))[part], np.zeros((2, 9))
    names = np.arange(1, matrix.shape[1] + 1, dtype=np.uint8)
    record = Outer(is_doubled, Inner(matrix, 0.3), names)
    expected = fill_product(record, out[0, : len(matrix)])
    for count in (1, 0):  # compiled, then loaded
        out[1] = 0.0
        assert call(fill_product, record, out[1, : len(matrix)]) == (expected, count)
        np.testing.assert_array_equal(out[1], out[0])


def test_a_record_that_replaces_another_one_is_read_anew(call):
    outs = np.zeros((2, 3))
    function = CompiledFunction(fill_product)
    call.monkeypatch.setattr(_jit, "_FOLDER", None)
    for scale, out in zip((1.0, 2.0), outs, strict=True):
        record = Outer(False, Inner(np.ones((3, 2)), scale), np.ones(2, np.uint8))
        function(record, out)
        del record
    assert outs.tolist() == [[2.0, 4.0, 6.0], [4.0, 8.0, 12.0]]


def draw_array(generator):
    """Return an array of any type, up to three axes, and any strides, which may be empty."""
    shape = [int(n) for n in generator.integers(0, 5, generator.integers(1, 4))]
    array = generator.integers(0, 2, [3 * n for n in shape]).astype(generator.choice(["i8", "f8", "u1", "?"]))
    steps = generator.choice([1, 1, 2, -3], len(shape))
    array = array[
        tuple(np.s_[: step * n : step] if step > 0 else np.s_[::step] for n, step in zip(shape, steps, strict=True))
    ]
    return np.asfortranarray(array) if generator.random() < 0.2 else array


def draw_value(generator, depth):
    """Return an argument of compiled code: a number, an array, or a named tuple of values."""
    kind = generator.integers(6 if depth else 5)
    if kind == 5:
        values = [draw_value(generator, depth - 1) for _ in range(generator.integers(1, 5))]
        return namedtuple("Drawn", [f"f{n}" for n in range(len(values))])(*values)
    number = int(generator.integers(-(2**62), 2**62))
    drawn = number, number / 3, np.float64(number), bool(number % 2)
    return drawn[kind] if kind < 4 else draw_array(generator)


def write_sum(name, value, lines, indent="    "):
    """Append statements that add each number of a value, each with a weight of its own, to `total`."""
    if isinstance(value, tuple):
        for field, part in zip(value._fields, value, strict=True):
            write_sum(f"{name}.{field}", part, lines)
    elif isinstance(value, np.ndarray):
        indices = "ijk"[: value.ndim]
        for axis, index in enumerate(indices):
            lines.append(f"{indent}for {index} in range({name}.shape[{axis}]):")
            indent += "    "
        weight = " + ".join(f"{5**axis} * {index}" for axis, index in enumerate(indices))
        lines.append(f"{indent}total += {name}[{', '.join(indices)}] * ({weight} + {len(lines)}.0)")
    else:
        lines.append(f"{indent}total += {name} * {len(lines)}.0")


@pytest.mark.parametrize("seed", range(12))
def test_arguments_of_any_types_are_read_as_python_reads_them(call, seed):
    generator = np.random.default_rng(seed)
    arguments = [draw_value(generator, depth=2) for _ in range(4)]
    lines = ["def add_all(a, b, c, d):", "    total = 0.0"]
    for name, value in zip("abcd", arguments, strict=True):
        write_sum(name, value, lines)
    namespace = {"__name__": __name__}
    exec("\n".join([*lines, "    return total"]), namespace)
    expected = namespace["add_all"](*arguments)
    assert call(namespace["add_all"], *arguments) == (expected, 1)
    assert call(namespace["add_all"], *arguments) == (expected, 0)


@pytest.mark.parametrize(
    "damage",
    [
        flip_byte,
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:40],
        lambda content: b"\x80" * 99,
    ],
)
def test_damaged_files_are_made_again(call, tmp_path, caplog, damage):
    call(twice, 21)
    path = only_file(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert [call(twice, 21), call(twice, 21)] == [(42, 1), (42, 0)]
    assert [record.getMessage() for record in caplog.records] == [
        f"compiled code in {path.parent} was damaged; it is compiled again"
    ]


def test_code_for_another_processor_is_not_run(call, monkeypatch):
    assert call(twice, 21) == (42, 1)
    monkeypatch.setattr(_machine_code, "_processor", lambda: "another one")
    assert [call(twice, 21), call(twice, 21)] == [(42, 1), (42, 0)]


def test_code_that_needs_what_this_process_lacks_is_made_again(call, tmp_path):
    """A library of vectorised functions, which numba can use, is not in each process."""
    import llvmlite.binding as llvm

    call(twice, 21)
    body = "() {\n%c = call i32 @missing()\nret i32 %c\n}"
    text = f"declare i32 @missing()\ndefine i32 @{_machine_code.ENTRY}{body}"
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    content = b"q\n" + machine.emit_object(llvm.parse_assembly(text))
    path = only_file(tmp_path)
    path.write_bytes(content + _machine_code._digest(path, content))
    assert [call(twice, 21), call(twice, 21)] == [(42, 1), (42, 0)]


def test_a_folder_in_a_file_s_place(call, tmp_path, caplog):
    call(twice, 21)
    path = only_file(tmp_path)
    path.unlink()
    path.mkdir()
    assert call(twice, 21) == (42, 1)
    assert "cannot be saved" in caplog.records[-1].getMessage()


def test_no_place_for_files(call, caplog):
    with caplog.at_level(logging.WARNING):
        assert call(twice, 21, folder=Path("/dev/null/numerics-1")) == (42, 1)
    assert "(not a directory): every run compiles it; set NUMBA_CACHE_DIR" in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="file sizes are limited as POSIX does")
def test_a_full_disk(call, tmp_path, caplog):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        assert call(twice, 21) == (42, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be saved" in caplog.text
    assert not list((tmp_path / FOLDER).iterdir())
    assert [call(twice, 21), call(twice, 21)] == [(42, 1), (42, 0)]


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


def test_another_version_of_numba_makes_a_new_folder(tmp_path, monkeypatch):
    folders = [_jit.cache_folder()]
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba/__init__.py").touch()
    (tmp_path / "numba/_version.py").write_text("version = 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        _jit.importlib.util, "find_spec", lambda name: type("", (), {"origin": str(tmp_path / name / "x")})
    )
    folders.append(_jit.cache_folder())
    assert len(set(folders)) == 2


def make_product(module, factor):
    scope = {"__name__": module}
    exec(compile(f"def times(value):\n    return {factor} * value\n", "time.py", "exec"), scope)
    return scope["times"]


def test_functions_of_one_name_in_files_of_one_name_have_their_own_code(call):
    functions = [
        make_product("anatune.templates.cuda.times.time", 2),
        make_product("anatune.templates.thin.times.time", 3),
    ]
    for count in (1, 0):
        assert [call(function, 21) for function in functions] == [(42, count), (63, count)]
    assert sorted({path.name.split(".")[0] for path in call.folder.glob("*.code")}) == ["cuda", "thin"]


@pytest.mark.parametrize("is_older", [False, True])
def test_code_of_another_function_or_of_older_sources_is_not_run(call, tmp_path, caplog, is_older):
    modules = "anatune.templates.cuda.times.time", "anatune.templates.cuda.times.other"
    places = [
        (make_product(modules[0], 2), tmp_path / "numerics-1"),
        (make_product(modules[not is_older], 3), tmp_path / ("numerics-0" if is_older else "numerics-1")),
    ]
    files = []
    for function, folder in places:
        before = set(tmp_path.rglob("*.code"))
        assert [call(function, 21, folder=folder)[1] for _ in "ab"] == [1, 0]
        files += set(tmp_path.rglob("*.code")) - before
    first, second = files
    shutil.copy(second, first)
    assert [call(places[0][0], 21, folder=places[0][1]) for _ in "ab"] == [(42, 1), (42, 0)]
    assert "was damaged; it is compiled again" in caplog.text


def test_helpers_are_compiled_with_their_callers_and_run_as_python(call):
    helper = Helper(lambda value: value + 1)

    def caller(value):
        return 2 * helper(value)

    assert helper(4) == 5
    assert call(caller, 4)[0] == 10


def test_numba_of_the_same_process_is_left_as_it_was(call):
    import numba

    def largest(left, right):
        return max(left, right) + 1

    assert call(largest, 3, 4)[0] == 5
    assert numba.njit(largest)(3, 4) == 5  # links the code of max that was compiled for ours
    assert numba.njit(lambda count: np.ones(count).sum())(3) == 3.0


PLAN = (
    "import sys\n"
    "from anatune.__main__ import run\n"
    "try:\n    run()\n"
    "except SystemExit as error:\n    assert not error.code\n"
    "assert 'numba' not in sys.modules\n"
)


@pytest.mark.parametrize(
    "words", ["rtx3090 matmul 64x64x64", "xeon_gold_6230r relu 16x16", "a100 matmul 64x64x64 --template triton"]
)
def test_a_plan_with_its_code_on_the_disk_imports_no_numba(words):
    command = [sys.executable, "-m", "anatune", "plan", "--hw", *words.split(), "--json"]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    program = f"import sys\nsys.argv = {command[2:]!r}\n{PLAN}"
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr


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
