"""Seconds from Ctrl-C to the end of each command, at random moments; what it says, and what it leaves behind.

    python -m bench.interrupts [COMMAND ...] [--moments 12] [--seed 0] [--json FILE] [--keep FOLDER]

Every command runs in a terminal of its own (a pty), where Ctrl-C goes to all of its processes, or (every second moment)
with pipes, where SIGINT goes to the first process only, as a supervisor sends it. Each moment is drawn between the
start and the time that the command takes if it is let alone (at most `--horizon`). What counts as right: one line after
Ctrl-C, exit status 130 (0 of those that serve until then), no process and no temporary file left. Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from anatune.cli.interrupts import INTERRUPTED
from bench.results import environment, matches, wide_console, write_json

_MARK = "ANATUNE_BENCH_MARK"
_PATIENCE_S = 60.0
"""A command that has not ended by then is killed."""
_SETTLE_S = 0.3
"""After the end, until what is left is counted: the system buries killed processes meanwhile."""


class Scenario(NamedTuple):
    """A command whose end is measured.

    Attributes
    ----------
    name : str
    words : callable
        Folder of what was prepared -> words of the command.
    first : bool
        With an empty cache of compiled code.
    background : callable, optional
        Starts what the command needs: folder -> process.
    serves : bool
        It runs until it is told to end.
    """

    name: str
    words: Callable[[Path], Sequence[object]]
    first: bool = False
    serves: bool = False


class Ending(NamedTuple):
    """How a command ended: seconds before and after Ctrl-C, status, what it said after, what it left."""

    moment_s: float
    terminal: bool
    seconds: float
    status: int | None
    said: str
    processes: int
    files: list[str]


_HUGE = ("conv2d", "64x512x28x28", "512x512x3x3", "--padding", "1")
SCENARIOS = (
    Scenario("help", lambda _: ["--help"]),
    Scenario("plan (GPU)", lambda _: ["plan", "--hw", "rtx3090", "matmul", "512x4096x1024"]),
    Scenario("plan, first", lambda _: ["plan", "--hw", "rtx3090", "matmul", "512x4096x1024"], first=True),
    Scenario("plan, first (CPU)", lambda _: ["plan", "--hw", "xeon_gold_6230r", "matmul", "512x512x512"], first=True),
    Scenario("plan huge (GPU)", lambda _: ["plan", "--hw", "a100", *_HUGE, "--top-k", "5000", "--all", "--json"]),
    Scenario("plan huge (CPU)", lambda _: ["plan", "--hw", "xeon_gold_6230r", *_HUGE, "--top-k", "3000", "--json"]),
    Scenario("plan --compile", lambda _: ["plan", "--hw", "a100", "matmul", "512x4096x1024", "--compile", "40"]),
    Scenario(
        "plan range (GPU)", lambda _: ["plan", "--hw", "rtx3090", "matmul", "1..8192x4096x4096", "--kernels", "6"]
    ),
    Scenario(
        "plan range (CPU)", lambda _: ["plan", "--hw", "xeon_gold_6230r", "matmul", "1..512x768x768", "--kernels", "4"]
    ),
    Scenario("prune", lambda _: ["prune", "--hw", "rtx3090", *_HUGE, "--keep", "1%"]),
    Scenario("tune", lambda _: ["tune", "--hw", "host", "--threads", "1", "matmul", "256x256x256", "--trials", "12"]),
    Scenario(
        "tune --build-only",
        lambda _: ["tune", "--hw", "a100", "matmul", "512x512x512", "--build-only", "built", "--trials", "24"],
    ),
    Scenario("export", lambda _: ["export", "--hw", "host", "matmul", "256x256x256", "--output", "lib"]),
    Scenario("export cuda", lambda _: ["export", "--hw", "a100", "matmul", "256x256x256", "--output", "lib"]),
    Scenario("compile", lambda folder: ["compile", folder / "model.onnx", "-o", "made", "--threads", "1"]),
    Scenario(
        "compile --trials",
        lambda folder: ["compile", folder / "model.onnx", "-o", "made", "--threads", "1", "--trials", "16"],
    ),
    Scenario("compile (GPU)", lambda folder: ["compile", folder / "model.onnx", "-o", "made", "--hw", "a100"]),
    Scenario("hw detect", lambda _: ["hw", "detect", "--print"]),
    Scenario("hw calibrate", lambda _: ["hw", "calibrate", "--print"]),
    Scenario("records list", lambda folder: ["records", "list", "--records", folder / "many.sqlite"]),
    Scenario("records import", lambda folder: ["records", "import", folder / "many.jsonl", "--records", "new.sqlite"]),
    Scenario("records merge", lambda folder: ["records", "merge", folder / "many.sqlite", "new.sqlite"]),
    Scenario(
        "records train",
        lambda folder: ["records", "train", "--records", folder / "train.sqlite", "--output", "corrections"],
    ),
    Scenario("cluster scheduler", lambda _: ["cluster", "scheduler", "--port", "0"], serves=True),
    Scenario("worker, alone", lambda _: ["worker", "127.0.0.1:9", "--build-only", "--builders", "1"], serves=True),
    Scenario("worker", lambda _: ["worker", "127.0.0.1:{port}", "--build-only", "--builders", "1"], serves=True),
)


def prepare(folder: Path) -> None:
    """Make the record files and the model that commands read."""
    if not (folder / "many.sqlite").exists():
        from bench.records_lookup import fill

        fill(str(folder / "many.sqlite"), 30_000, 8)
    if not (folder / "many.jsonl").exists():
        words = ["records", "export", "--records", str(folder / "many.sqlite"), "--output", str(folder / "many.jsonl")]
        subprocess.run([*_command(), *words], check=True)
    if not (folder / "train.sqlite").exists():
        _fill_training(folder / "train.sqlite")
    if not (folder / "model.onnx").exists():
        _write_model(folder / "model.onnx")


def _fill_training(path: Path) -> None:
    """Record predicted times with some noise as if they had been measured."""
    import anatune
    from anatune.core.trial import Measurement, Outcome, Trial
    from anatune.records.store import RecordStore

    chance = random.Random(0)
    hardware = anatune.hardware("rtx3090")
    with RecordStore(path) as store:
        for size in (256, 384, 512, 768, 1024):
            workload = anatune.matmul(size, size, size)
            space = anatune.space(workload, hardware)
            drawn = space.sample(1500, 0)
            times_s = anatune.predict(workload, hardware, drawn)["time_s"]
            session = store.new_session(workload, hardware, 1, "random", 0)
            legal = [(one, time_s) for one, time_s in zip(drawn, times_s, strict=True) if math.isfinite(time_s)]
            for number, (schedule, time_s) in enumerate(legal[:400]):
                times = tuple(float(time_s) * chance.uniform(1.0, 1.5) for _ in range(3))
                outcome = Measurement(Outcome.OK, times_s=times, max_rel_error=1e-7)
                store.append(session, Trial(schedule, outcome, number, "random", float(time_s), 1))


def _write_model(path: Path) -> None:
    """Write a chain of convolutions."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants, channels = [], [], 16
    for number, out in enumerate((32, 48, 64, 96, 128)):
        weight = np.random.default_rng(number).standard_normal((out, channels, 3, 3)).astype(np.float32) / channels
        constants.append(numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(helper.make_node("Conv", [f"x{number}", f"w{number}"], [f"c{number}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"x{number + 1}"]))
        channels = out
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, count, 28, 28])
        for name, count in (("x0", 16), (f"x{len(constants)}", channels))
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def _command() -> list[str]:
    return [sys.executable, "-m", "anatune"]


def end(scenario: Scenario, prepared: Path, moment_s: float, *, terminal: bool, port: int) -> Ending | None:
    """Run a command, end it by Ctrl-C; None where it had ended before."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="interrupts-") as place:
        folder = Path(place)
        (folder / "tmp").mkdir()
        (folder / "here").mkdir()
        variables = {
            **os.environ, _MARK: mark, "TMPDIR": str(folder / "tmp"), "XDG_CONFIG_HOME": str(folder / "config"),
            "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color",
        }  # fmt: skip
        if scenario.first:
            variables["NUMBA_CACHE_DIR"] = str(folder / "cache")
        words = [str(word).format(port=port) for word in scenario.words(prepared)]
        process, streams = _start([*_command(), *words], folder / "here", variables, terminal=terminal)
        output = bytearray()
        _read(streams, output, until=time.monotonic() + moment_s, process=process)
        if process.poll() is not None:
            return None
        before = len(output)
        began = time.monotonic()
        if terminal:
            os.write(streams[0], b"\x03")
        else:
            process.send_signal(signal.SIGINT)
        _read(streams, output, until=began + _PATIENCE_S, process=process)
        seconds = time.monotonic() - began
        status = process.poll()
        time.sleep(_SETTLE_S)
        _read(streams, output, until=time.monotonic(), process=None)
        left = [one for one in _marked(mark) if one != process.pid or status is None]
        for one in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.wait()
        for stream in streams:
            os.close(stream)
        files = [one.name for one in (folder / "tmp").iterdir() if one.name != "dask-scratch-space"]  # Dask's own way
        files += [str(one.relative_to(folder)) for one in folder.rglob("*.part")]
        files += [str(one.relative_to(folder)) for one in folder.rglob("*.tmp*") if "cache" in one.parts]
        said = output[before:].decode(errors="replace")
        return Ending(moment_s, terminal, seconds, status, said, len(left), files)


def _start(
    command: Sequence[str], folder: Path, variables: dict[str, str], *, terminal: bool
) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start a command; return it, and where its output is read."""
    if not terminal:
        ours, theirs = os.pipe()
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        return process, [ours]
    master, slave = pty.openpty()
    code = "import os, sys, fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code, *command], cwd=folder, env=variables, stdin=slave, stdout=subprocess.DEVNULL,
        stderr=slave, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    return process, [master]


def _read(streams: list[int], output: bytearray, *, until: float, process: subprocess.Popen[bytes] | None) -> None:
    """Read what a command writes until a moment, or its end."""
    while True:
        left_s = until - time.monotonic()
        ready, _, _ = select.select(streams, [], [], max(0.0, min(left_s, 0.005)))
        for stream in ready:
            with contextlib.suppress(OSError):
                output += os.read(stream, 65536)
        if process is None and not ready:
            return
        if process is not None and (process.poll() is not None or left_s <= 0):
            return
        if process is None and left_s <= -1.0:
            return


def _marked(mark: str) -> list[int]:
    """Return the processes that inherited a variable."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes() and "\nState:\tZ" not in (entry / "status").read_text():
                    found.append(int(entry.name))
    return found


def _lines(said: str) -> list[str]:
    """Return the lines that a person sees after Ctrl-C."""
    text = said.replace("^C", "").replace("\r\n", "\n").replace("\x1b[?25h", "")
    text = re.sub(r"[^\n]*\n?\r?(\x1b\[1A)?\x1b\[2K", "", text)  # lines that are wiped
    shown = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip() for line in text.split("\n")]
    return [line for line in shown if line]


def horizon(scenario: Scenario, prepared: Path, most_s: float, port: int) -> float:
    """Return the seconds that a command takes, at most `most_s`."""
    if scenario.serves:
        return min(8.0, most_s)
    began = time.monotonic()
    ended = end(scenario, prepared, most_s, terminal=True, port=port)
    return most_s if ended is not None else time.monotonic() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="names, with * and ?; by default all")
    parser.add_argument("--moments", type=int, default=12, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--horizon", type=float, default=20.0, help="latest moment, seconds")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of what is prepared; made if it is missing")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--show", action="store_true", help="what was said where it was not one line")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background, and inherited so
    chosen = [one for one in SCENARIOS if not options.commands or matches(one.name, options.commands)]
    prepared = options.keep or Path(tempfile.mkdtemp(prefix="interrupts-"))
    prepared.mkdir(parents=True, exist_ok=True)
    console = wide_console(110)
    table = Table(title="Ctrl-C", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("command", "of s", "moments", "median s", "worst s", "wrong status", "not one line", "left behind"):
        table.add_column(heading, justify="left" if heading == "command" else "right", no_wrap=True)
    results: dict[str, list[Ending]] = {}
    server = subprocess.Popen(
        [*_command(), "cluster", "scheduler", "--port", "18786"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        prepare(prepared)
        for scenario in chosen:
            chance = random.Random(f"{options.seed} {scenario.name}")
            length = horizon(scenario, prepared, options.horizon, 18786)
            results[scenario.name] = found = []
            for number in range(options.moments):
                moment = chance.uniform(0.05, length)
                ended = end(scenario, prepared, moment, terminal=number % 2 == 0, port=18786)
                if ended is not None:
                    found.append(ended)
            times = sorted(one.seconds for one in found) or [float("nan")]
            many = [one for one in found if len(_lines(one.said)) != 1]
            left = [one for one in found if one.processes or one.files]
            wrong = sum(one.status != (0 if scenario.serves else INTERRUPTED) for one in found)
            table.add_row(
                scenario.name, f"{length:.1f}", str(len(found)), f"{times[len(times) // 2]:.2f}", f"{times[-1]:.2f}",
                str(wrong), str(len(many)), str(len(left)),
            )  # fmt: skip
            print(scenario.name, f"{times[-1]:.2f}", flush=True, file=sys.stderr)
            if options.show:
                for one in found:
                    if one.status not in (0, INTERRUPTED) or one in many or one in left or one.seconds > 1.0:
                        shown = "\n    ".join(_lines(one.said)[-12:])
                        console.print(
                            f"{scenario.name} at {one.moment_s:.2f} s, {'terminal' if one.terminal else 'pipe'}: "
                            f"{one.seconds:.2f} s, status {one.status}, {one.processes} processes, {one.files}\n    "
                            f"{shown}", markup=False, highlight=False,
                        )  # fmt: skip
    finally:
        server.terminate()
        server.wait()
        if options.keep is None:
            shutil.rmtree(prepared, ignore_errors=True)
    console.print(table)
    if options.json:
        write_json(options.json, {"environment": environment(seed=options.seed), "endings": results})


if __name__ == "__main__":
    main()
