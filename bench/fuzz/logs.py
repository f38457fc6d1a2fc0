"""Random files: results and logs of tuners, records, specs, schedules, ONNX models; whole ones, and damaged ones.

A whole file has to be read to what was written. A damaged one is read, or refused in one line; nothing else is raised.
"""

from __future__ import annotations

import copy
import gzip
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.fuzz.program import Outcome

__all__ = ["LogCase", "judge", "make", "text"]

_FORMS = ("t4", "t4", "cache", "autotvm", "ansor", "json lines", "sqlite", "spec", "schedule", "onnx", "workload")
_UNITS = {
    "ms": 1e-3, "milliseconds": 1e-3, "s": 1.0, "seconds": 1.0, "us": 1e-6, "microseconds": 1e-6, "ns": 1e-9,
    "nanoseconds": 1e-9, "": 1e-3,
}  # fmt: skip
_VALUES = (
    None, 0, -1, 1, 2**63, 10**30, 1e308, "", "x", [], {}, [[]], True, "float32", [1, 2], -0.5,
    float("nan"), float("inf"),
)  # fmt: skip
_XGEMM = {"MWG": 32, "NWG": 32, "KWG": 16, "MDIMC": 8, "NDIMC": 8, "KWI": 2, "VWM": 2, "VWN": 1, "STRM": 1, "STRN": 0,
          "SA": 1, "SB": 1, "GEMMK": 0}  # fmt: skip


@dataclass(frozen=True)
class LogCase:
    """A file, and the times in seconds that a whole one says; () where it is damaged, or says no times."""

    kind: str
    seed: int
    form: str
    data: bytes
    times_s: tuple[float, ...] = field(default=())


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in items for place in _places(one, (*path, key)))]


def _mutated(random: np.random.Generator, entry: Any) -> Any:
    """Return JSON some of whose values are others, or gone."""
    entry = copy.deepcopy(entry)
    for _ in range(int(random.integers(1, 4))):
        path = (places := _places(entry))[int(random.integers(len(places)))]
        if not path:
            continue
        parent = entry
        for key in path[:-1]:
            parent = parent[key]
        if random.random() < 0.7:
            parent[path[-1]] = copy.deepcopy(_VALUES[int(random.integers(len(_VALUES)))])
        else:
            del parent[path[-1]]
    return entry


def _damaged(random: np.random.Generator, data: bytes) -> bytes:
    """Return bytes that are cut off, flipped, doubled or gone in places."""
    found = bytearray(data)
    for _ in range(int(random.integers(1, 5))):
        if not found:
            break
        place, count = int(random.integers(len(found))), int(random.choice([1, 1, 2, 8, 64]))
        what = random.random()
        if what < 0.2:
            del found[place:]
        elif what < 0.4:
            del found[place : place + count]
        elif what < 0.6:
            found[place:place] = found[place : place + count]
        else:
            found[place : place + count] = (
                random.integers(0, 256, len(found[place : place + count])).astype("u1").tobytes()
            )
    return bytes(found)


def _t4(random: np.random.Generator) -> tuple[Any, list[float]]:
    """Return a results file in T4, and its times in seconds."""
    unit = str(random.choice(list(_UNITS)))
    metadata, factor = {}, _UNITS[unit]
    if not unit and random.random() < 0.5:  # KTT says it for the whole file
        metadata = {"timeunit": str(random.choice(["microseconds", "nanoseconds", "milliseconds"]))}
        factor = _UNITS[metadata["timeunit"]]
    times, results = [], []
    for number in range(int(random.integers(1, 4))):
        time_s = float(f"{random.uniform(1e-5, 1e-3):.6g}")
        value: Any = time_s / factor
        if random.random() < 0.2:
            value = [value, value]
        measurement = {"name": "time", "value": value, "unit": unit}
        results.append(
            {
                "configuration": {**_XGEMM, "KWI": 2 if number % 2 else 8},
                "times": {"runtimes": [time_s * 1e3]},
                "invalidity": "correct",
                "correctness": 1,
                "measurements": [measurement],
                "objectives": ["time"],
            }
        )
        times.append(time_s)
    return {"schema_version": "1.0.0", "metadata": metadata, "results": results}, times


def _lines(form: str) -> Any:
    """Return an entry of a log, as those of the tests of readers."""
    entity = [["tile_y", "sp", [4, 2, 8]], ["tile_x", "sp", [2, 2, 32]], ["tile_k", "sp", [64, 2]]]
    if form == "autotvm":
        arguments = [
            ["TENSOR", [4, 8, 14, 14], "float32"],
            ["TENSOR", [16, 8, 3, 3], "float32"],
            [1, 1],
            [1, 1, 1, 1],
            [1, 1],
            "float32",
        ]
        return {
            "input": ["cuda -keys=cuda,gpu", "conv2d_nchw.cuda", arguments, {}],
            "config": {"index": 7, "entity": entity},
            "result": [[1e-5, 1.2e-5], 0, 2.5, 1.6e9],
            "version": 0.2,
        }
    steps = [["CHW", 3, "local"], ["SP", 3, 0, 64, [2, 8, 1, 2], 1], ["PR", 3, 0, "auto_unroll_max_step$512"]]
    return {"i": [['["abc"]', "cuda"], [[], steps]], "r": [[2e-5], 0, 1.0, 1.6e9], "v": "v0.6"}


def _spec_files() -> list[Path]:
    from anatune.resources import data_folder

    return sorted(data_folder("hwspecs").glob("*.toml"))


def _records(folder: Path) -> Path:
    """Write a small record file, and return it."""
    source = Path(__file__).resolve().parents[2] / "tests" / "e2e" / "records.sqlite.gz"
    path = folder / "r.sqlite"
    path.write_bytes(gzip.decompress(source.read_bytes()))
    return path


def _exported(folder: Path) -> bytes:
    from anatune.records.export import json_lines
    from anatune.records.store import RecordStore

    with RecordStore(_records(folder)) as store:
        return "\n".join(
            line for line, _ in zip(json_lines(store.iterate(), store.sessions()), range(6), strict=False)
        ).encode()


def make(seed: int) -> LogCase:
    """Return the file of a seed."""
    random = np.random.default_rng([9, seed])
    form = str(random.choice(_FORMS))
    times: list[float] = []
    if form == "t4":
        entry, times = _t4(random)
        if random.random() < 0.5:
            entry, times = _mutated(random, entry), []
        data = json.dumps(entry).encode()
    elif form == "cache":
        entry = {
            "kernel_name": "Xgemm",
            "device_name": "NVIDIA GeForce RTX 3090",
            "cache": {"a": {**_XGEMM, "time": 0.05}, "b": {}},
        }
        data = json.dumps(_mutated(random, entry)).encode()
    elif form in ("autotvm", "ansor"):
        data = "\n".join(json.dumps(_mutated(random, _lines(form))) for _ in range(3)).encode()
    elif form == "spec":
        files = _spec_files()
        data = files[int(random.integers(len(files)))].read_bytes()
    elif form == "schedule":
        import anatune

        data = (
            anatune.plan(anatune.matmul(64, 48, 32), str(random.choice(["rtx3090", "xeon_8124m"])), top_k=1)
            .best.to_json()
            .encode()
        )
        data = json.dumps(_mutated(random, json.loads(data))).encode()
    elif form == "workload":
        data = str(
            random.choice(["matmul 64x64x64", "conv2d 1x3x8x8 4x3x3 --padding 1", "reduction 3x4 --axes 1"])
        ).encode()
    elif form == "onnx":
        from bench.fuzz.onnx import cases

        data = cases.model_of(cases.make(seed)).SerializeToString()
    else:
        with tempfile.TemporaryDirectory() as folder:
            data = _exported(Path(folder)) if form == "json lines" else _records(Path(folder)).read_bytes()
    if not times and (form in ("spec", "workload", "onnx", "json lines", "sqlite") or random.random() < 0.2):
        data = _damaged(random, data)
    if form == "t4" and random.random() < 0.15:
        data = b"\xef\xbb\xbf" + data  # a byte-order mark
    return LogCase("logs", seed, form, data, tuple(times))


def judge(case: LogCase) -> Outcome:
    """Return what becomes of a file; exceptions of anatune's pass, refusals of damaged ones are right."""
    from anatune.errors import AnatuneError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / {"spec": "nvidia_fuzz.toml", "sqlite": "r.sqlite", "onnx": "m.onnx"}.get(
            case.form, "log.json"
        )
        path.write_bytes(case.data)
        try:
            times = _read(case, path)
        except AnatuneError as error:
            if "\n" in str(error):
                return Outcome("raw", f"several lines: {error!r}"[:300], (case.form,), case)
            if case.times_s:
                return Outcome("wrong", f"a whole file is refused: {error}", (case.form,), case)
            raise
    if case.times_s:
        is_same = len(times) == len(case.times_s) and all(
            one is not None and abs(one - other) <= 1e-6 * other for one, other in zip(times, case.times_s, strict=True)
        )
        if not is_same:
            return Outcome("wrong", f"times are {times} s, expected {list(case.times_s)}", (case.form,), case)
    return Outcome("right", "", (case.form,))


def _read(case: LogCase, path: Path) -> list[float | None]:
    """Read a file, and return the times that it says."""
    import anatune

    if case.form in ("t4", "cache"):
        from anatune.adapters.kernel_tuner_files import read_results
        from anatune.adapters.logs import read_foreign

        times = [measurement.time_s for _, measurement in read_results(path).entries]
        read_foreign(path, anatune.hardware("rtx3090"), anatune.matmul(256, 256, 256))
        return times
    if case.form in ("autotvm", "ansor"):
        from anatune.adapters.logs import read_foreign

        read_foreign(path, anatune.hardware("rtx3090"))
    elif case.form == "json lines":
        from anatune.records.export import import_json_lines
        from anatune.records.store import RecordStore

        with RecordStore(path.with_name("new.sqlite")) as store:
            import_json_lines(store, path)
    elif case.form == "sqlite":
        from anatune.records.store import RecordStore

        with RecordStore(path) as store:
            list(store.iterate())
            store.trials()
    elif case.form == "spec":
        anatune.plan(anatune.matmul(32, 32, 32), path, top_k=1)
    elif case.form == "schedule":
        schedule = anatune.Schedule.from_json(case.data.decode(errors="replace"))
        anatune.predict(schedule.workload, schedule.hardware, [schedule])
    elif case.form == "workload":
        from anatune.core.workload.text import parse_workload

        words = case.data.decode(errors="replace").split()
        parse_workload(" ".join(words))
    else:
        from anatune.adapters.onnx import InferenceSession

        session = InferenceSession(path, threads=1)
        session.get_inputs(), session.get_outputs()
    return []


def text(case: LogCase) -> str:
    """Return a case as Python that writes its file and reads it."""
    return "\n".join([
        "from pathlib import Path", "from bench.fuzz.logs import LogCase, judge", f"data = {case.data!r}",
        f"print(judge(LogCase('logs', {case.seed}, {case.form!r}, data, {case.times_s!r})))\n",
    ])  # fmt: skip
