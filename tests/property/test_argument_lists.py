"""Random command lines and library calls: an answer, or one line that says what is wrong. Never a traceback or a wait.

Words, options and arguments are valid ones and others, at random; the seeds are fixed. ANATUNE_FUZZ=5000 runs so many.
What would take minutes (measuring, calibrating) is cut off behind its checks.
"""

import decimal
import itertools
import math
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import anatune
from anatune.cli import main
from anatune.errors import AnatuneError, RunError
from anatune.measure.cpu.calibration import calibrate
from anatune.measure.cuda.calibration import calibrate as calibrate_gpu
from anatune.records.store import RecordStore
from anatune.tuning.session import TuningSession
from tests.cases import each
from tests.unit.records.making import session_of, trial

RUNS = int(os.environ.get("ANATUNE_FUZZ", "0"))
LIMIT_S = 120
"""Longest time of one call: a machine may be slow, a call that waits is not done then either."""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="alarms and pipes are POSIX's")


class TooLongError(Exception):
    pass


@contextmanager
def alarm(what: object) -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise TooLongError(f"{what!r} takes longer than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def stopped(*given: object, **named: object) -> None:
    raise RunError("stopped by the test")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with files of all kinds; what measures is cut off."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(TuningSession, "run", stopped)
    monkeypatch.setattr(calibrate, "calibrate", stopped)
    monkeypatch.setattr(calibrate_gpu, "calibrate_gpu", stopped)
    monkeypatch.setattr("anatune.tuning.manifest.build_manifest", stopped)
    monkeypatch.setattr("anatune.codegen.cuda.nvrtc.compile_cuda", stopped)
    monkeypatch.setattr("anatune.codegen.cpu.lower.build_schedule", stopped)
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("empty").touch()
    Path("noise").write_bytes(random.Random(1).randbytes(3000))
    Path("text.json").write_text('{"workload": [1, 2', encoding="utf-8")
    Path("link").symlink_to("link")
    Path("point.json").write_text(POINT.to_json())
    with RecordStore("tuning.sqlite") as store:
        store.append(session_of(store), trial())
    return tmp_path


# ---- command lines -----------


def listed(text: str) -> list[str]:
    return text.split("|")


FILES = listed(
    "pipe|folder|empty|noise|text.json|link|point.json|tuning.sqlite|missing|missing/x|/dev/null|/dev/zero|/dev/full|"
    ":memory:|file:x|.|/dev/null/x|-|~|~nobody/x|x\0y|\udcff|"
)
FILES.append("n" * 300)
WIDE, ARABIC = "\uff11\uff12", "\u0663"
"""Digits that int() takes and nobody types."""
ODD = listed(f"-1|0|1|3|1e3|1e29|nan|-inf|0x10|{WIDE}|{ARABIC}|| |x|None|\0|-|--|1,1|1x1|\ud800|\xe9|%s|{{}}|$(id)|*")
ODD += ["a" * 300, "9" * 30, "9" * 5000]
WORKLOADS = listed(
    "matmul 8x8x8|matmul 17x12x5|batch_matmul 2x8x8x8|conv2d 1x4x6x6 8x4x3x3|conv1d 1x4x9 8x4x3|reduction 8x8|"
    "elementwise 8x8|max_pool2d 1x4x6x6 2x2|einsum ij,jk->ik 8x8 8x8|bert:M9|resnet18:C99|matmul|matmul 0x1x1|"
    "matmul 2147483647x2147483647x2147483647|matmul 99999999999999999999x1x1|matmul 8x8x8 8x8|conv2d 1x4x6x6|"
    f"einsum ij,jk->iz 8x8 8x8|einsum  8|nonsense|matmul {WIDE}x8x8|matmul 8xx8|matmul -1x8x8"
)
DEVICES = ["rtx3090", "a100_sxm", "h200", "t4", "mi50", "xeon_gold_6230r", "host", "host_gpu", "nonsense", *FILES[:8]]
TEMPLATES = ["cuda", "pipelined", "triton", "tensorcore", "cpu", "winograd", "scaled", "fp16_accumulation", "gpu"]
COUNTS = ["1", "2", "5", "300"]
SHAPES = {
    "--stride": ["1", "2", "1,2"], "--padding": ["0", "1", "SAME"], "--dilation": ["1", "2"], "--groups": ["1", "2"],
    "--layout": ["NCHW", "NHWC"], "--dtype": ["float32", "float16", "bfloat16", "int8"], "--transpose-a": None,
    "--transpose-b": None, "--epilogue": ["relu", "bias,relu", "add"], "--axes": ["0", "0,1"],
}  # fmt: skip
RANKING = {
    "--hw": DEVICES, "--template": TEMPLATES, "--time-limit": ["1", "0.01"], "--distinct": None, "--plain": None,
    "--threads": COUNTS, "--model": ["ansor_k80", "autotvm_mi50", *FILES],
}  # fmt: skip
FILTERS = {"--records": FILES, "--hw": DEVICES, "--threads": COUNTS, "--session": ["0", "1"]}
TRIALS = {**FILTERS, "--outcome": ["ok", "build_error"], "--limit": COUNTS}
COMMANDS: dict[str, tuple[list[str], dict[str, list[str] | None]]] = {
    "plan": (WORKLOADS, {**SHAPES, **RANKING, "--top-k": COUNTS, "--compile": ["0", "1"], "--explain": None}),
    "prune": (
        WORKLOADS,
        {**SHAPES, **RANKING, "--keep": ["0.01", "1%", "8"], "--most": COUNTS, "--no-diverse": None}
        | {"--for": ["json", "csv", "triton", "kernel-tuner", "metaschedule"]},
    ),
    "tune": (
        WORKLOADS,
        {**SHAPES, "--hw": DEVICES, "--trials": COUNTS, "--strategy": ["model", "dgd", "grid"], "--records": FILES}
        | {"--start": ["model", "paper"], "--threads": COUNTS, "--resume": None, "--seed": COUNTS, "--l2": ["warm"]}
        | {"--time-limit": ["1"], "--template": TEMPLATES, "--device": ["0"], "--backend": ["pycuda", "cuda-bindings"]}
        | {"--build-only": FILES, "--manifest": FILES, "--output": FILES},
    ),
    "export": (
        [*FILES, *WORKLOADS],
        {"--records": FILES, "--format": ["so", "tvm", "o", "a"], "--target": ["cpu", "cuda"], "--name": ["f", "9f"]}
        | {"--output": FILES, "--threads": COUNTS, "--hw": DEVICES, "--template": TEMPLATES, **SHAPES},
    ),
    "hw list": ([""], {}),
    "hw show": (DEVICES, {}),
    "hw check": (FILES, {}),
    "hw detect": ([""], {"--print": None, "--force": None}),
    "hw calibrate": (["host", "host_gpu", "host_gpu1"], {"--print": None, "--minutes": ["0.1"]}),
    "records list": ([*FILES, *WORKLOADS], {**TRIALS, "--sessions": None}),
    "records best": ([*FILES, *WORKLOADS], FILTERS),
    "records export": ([*FILES, *WORKLOADS], {**TRIALS, "--format": ["jsonl", "csv", "tvm"], "--output": FILES}),
    "records import": (FILES, {"--records": ["new.sqlite", *FILES], "--hw": DEVICES}),
    "records train": ([*FILES, *WORKLOADS], {"--records": FILES, "--hw": DEVICES, "--output": FILES}),
}


def command_line(rng: random.Random) -> list[str]:
    """Return a command with words and options, most of them ones that it has."""
    command = rng.choice(list(COMMANDS))
    words, options = COMMANDS[command]
    line = command.split()
    tail = rng.choice(words).split(" ") if rng.random() < 0.95 else [rng.choice(ODD)]
    given: list[str] = []
    if "--hw" in options and rng.random() < 0.8:
        given += ["--hw", rng.choice(DEVICES[:4] if rng.random() < 0.6 else DEVICES)]
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        option = rng.choice([*options, "--json", "--nonsense", "--help"] if rng.random() < 0.9 else list(SHAPES))
        values = options.get(option)
        given.append(option)
        if values is not None and rng.random() < 0.97:
            given.append(rng.choice(values if rng.random() < 0.7 else ODD))
    line += [*given, *tail] if rng.random() < 0.5 else [*tail, *given]
    if rng.random() < 0.05:
        line.insert(rng.randrange(len(line) + 1), rng.choice(ODD))
    if rng.random() < 0.03:
        del line[rng.randrange(len(line))]
    return line


_PROGRESS = (
    "note: ",
    "building: ",
    "compiling: ",
    "searching: ",
    "training: ",
    "importing: ",
    "merging: ",
    "planning",
    "calibrate: ",
    "wrote ",
)


@each("seed", range(RUNS or 120))
def test_command_lines(capsys, seed):
    words = command_line(random.Random(seed))
    with alarm(words):
        status = main.main(words)
    captured = capsys.readouterr()
    said = [line for line in captured.err.splitlines() if not line.startswith(_PROGRESS)]
    assert status in (0, 1, 2), (words, captured.err)
    assert [line[:7] for line in said] == (["error: "] if status else []), (words, captured.err)
    assert "Traceback" not in captured.err


# ---- library calls -----------

SMALL = anatune.matmul(8, 8, 8)
GPU, CPU = anatune.hardware("rtx3090"), anatune.hardware("xeon_gold_6230r")
SPACES = [anatune.space(SMALL, GPU), anatune.space(SMALL, CPU), anatune.space(SMALL, GPU, template="pipelined")]
SPACES.append(anatune.space(anatune.matmul(64, 64, 64, dtype="float16"), "a100_sxm", template="triton"))
POINT = SPACES[0].sample(1, 1)[0]
PLAN = anatune.plan(SMALL, GPU, top_k=2)
KEPT = anatune.prune(SMALL, GPU, keep=4)

VALUES: list[object] = [
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, -(10**30), 10**5000, 0.5, -0.0, 1e300, math.nan, math.inf, -math.inf,
    np.int64(3), np.float32(0.5), np.True_, np.array(3), np.zeros((2, 2)), np.array(["x"]), "", "x", "host", "rtx3090",
    "cuda", "auto", "none", WIDE, "a\0b", "a" * 300, "\ud800", b"x", bytearray(3), [], [1], (), (1, 2), {}, {"i": 1},
    {"i": (8, 1, 1, 1, 1)}, {1: 2}, set(), object(), object, len, ..., Path("x"), Path("missing/x"), Path("pipe"),
    Path("noise"), Path("tuning.sqlite"), 1j, decimal.Decimal(3), range(3), SMALL, GPU, CPU, POINT, [POINT], [POINT, 5],
    PLAN, SPACES[0],
]  # fmt: skip
CALLS: list[tuple[object, dict[str, object]]] = [
    (anatune.hardware, {"name": "rtx3090"}),
    (anatune.parse_workload, {"words": ["matmul", "8x8x8"]}),
    (anatune.layer, {"name": "resnet18:C2"}),
    (anatune.matmul, {"m": 8, "n": 8, "k": 8, "dtype": "float32", "transpose_a": False, "epilogue": ()}),
    (anatune.conv2d, {"n": 1, "c": 4, "h": 6, "w": 6, "k": 8, "r": 3, "s": 3, "stride": 1, "padding": 1}),
    (anatune.einsum, {"subscripts": "ij,jk->ik", "shapes": ((8, 8), (8, 8))}),
    (anatune.reduction, {"shape": (8, 8), "axes": (1,)}),
    (anatune.elementwise, {"shape": (8, 8)}),
    (anatune.space, {"workload": SMALL, "hw": GPU, "template": None}),
    (
        anatune.plan,
        {
            "workload": SMALL,
            "hw": GPU,
            "top_k": 1,
            "template": None,
            "time_limit_s": None,
            "distinct": False,
            "threads": None,
        }
        | {"compile": 0, "correction": "auto", "progress": None, "compile_progress": None},
    ),
    (anatune.predict, {"workload": SMALL, "hw": GPU, "schedules": [POINT], "threads": None, "correction": "auto"}),
    (
        anatune.prune,
        {
            "workload": SMALL,
            "hw": GPU,
            "keep": 4,
            "template": None,
            "threads": None,
            "candidates": None,
            "time_limit_s": None,
        }
        | {"threads": None, "distinct": False, "diverse": True, "correction": "auto"},
    ),
    (
        anatune.tune,
        {"workload": SMALL, "hw": anatune.hardware("host"), "trials": 1, "strategy": "model", "records": None}
        | {"threads": 1, "seed": 0, "resume": False, "progress": None, "limits": None, "time_limit_s": None}
        | {"template": None, "l2": None, "device": 0, "backend": None, "manifest": None, "start": "model"},
    ),
    (anatune.build, {"schedule": SPACES[1].sample(1)[0], "threads": 1}),
    (anatune.verify, {"schedule": SPACES[1].sample(1)[0], "threads": 1, "seed": 0}),
    (anatune.inspect, {"schedule": SPACES[1].sample(1)[0], "threads": 1}),
    (anatune.Schedule.from_json, {"text": POINT.to_json()}),
    (RecordStore, {"path": "other.sqlite", "read_only": False}),
    (KEPT.explain, {"schedule": POINT}),
    (KEPT.keeps, {"schedule": POINT}),
    *((space.sample, {"count": 2, "seed": 0}) for space in SPACES),
    *((space.sample_points, {"count": 2, "seed": 0, "legal": True}) for space in SPACES),
    *((space.point_of, {"schedule": space.sample(1)[0]}) for space in SPACES),
    *((space.schedule_of, {"point": space.sample_points(1, 0)[0]}) for space in SPACES),
    (SPACES[0].schedule, {"tiles": {"i": (8, 1, 1, 1, 1)}, "unroll": 0, "vector": {"A": 1}}),
    (SPACES[1].schedule, {"tiles": SPACES[1].sample(1)[0].tiles, "unroll": 0}),
    (SPACES[2].schedule, {"tiles": {}, "unroll": 0, "vector": None, "stages": 1, "pad": 0}),
    (SPACES[3].schedule, {"tiles": {}, "stages": 1, "group": 1}),
]


@each("seed", range(RUNS or 300))
def test_library_calls(seed):
    rng = random.Random(seed)
    call, valid = rng.choice(CALLS)
    given = dict(valid)
    for name in rng.sample(sorted(given), min(len(given), rng.choice([1, 1, 1, 2, 3]))):
        given[name] = rng.choice(VALUES)
    with alarm((call, seed)):
        try:
            answer, text = call(**given), "fine"  # type: ignore[operator]
            if isinstance(answer, Iterator) or hasattr(answer, "entries"):
                list(itertools.islice(answer, 3))
        except AnatuneError as error:
            text = str(error)
    assert "\n" not in text, (call, seed)
    assert 0 < len(text) < 1000, (call, seed)
