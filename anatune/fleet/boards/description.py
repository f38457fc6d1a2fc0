"""What a board is: its system's files, read over there, as the spec of its processor and its environment.

A process of its own asks: a board that says nothing more holds up nobody for long.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from anatune.core.hardware.spec import CpuSpec
from anatune.errors import DeviceError
from anatune.fleet.boards.connection import Board, connected
from anatune.fleet.boards.tracker import boards_of, checked_key, tracker_of
from anatune.measure.cpu.detect import cpu_list, detect_cpu
from anatune.measure.run.process import Worker, refusal
from anatune.printable import printable
from anatune.records.environment import Environment, environment

_CPUS = "sys/devices/system/cpu"
_OF_ALL = (
    "sys/devices/cpu_core/cpus",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us",
)
_OF_CPU = (
    "cpu_capacity",
    "cpufreq/cpuinfo_max_freq",
    *(f"topology/{name}" for name in ("physical_package_id", "die_id", "thread_siblings_list", "core_id")),
)
_OF_CACHE = ("size", "type", "level", "shared_cpu_list", "ways_of_associativity", "coherency_line_size")
_CACHES = 5
"""Cache folders of a processor: two of the first level, two more, one to spare."""

_MOST_CPUS = 1024
_ARM_FEATURES = {0: "fp", 1: "asimd", 9: "fphp", 10: "asimdhp", 20: "asimddp", 22: "sve"}
"""Bit of AT_HWCAP -> name in /proc/cpuinfo, those that matter. Source: Linux, arch/arm64/include/uapi/asm/hwcap.h."""


class BoardDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A board. Immutable; JSON both ways.

    Attributes
    ----------
    name : str
        The key, and where its server listens.
    key : str
    hardware : CpuSpec
        Its processor, detected, called after the key.
    environment : Environment
        As records of its trials have it. TVM's version is that of this machine, which generates code.
    free_bytes : int or None
        Memory that is free there; None if it does not tell.
    boards : int
        Registered under the key when this one was asked.
    """

    name: str
    key: str
    hardware: CpuSpec
    environment: Environment
    free_bytes: int | None = None
    boards: int = 1


def machine_of(hardware: CpuSpec) -> str:
    """Return the processor, one of `connection.MACHINES`, that a spec's code is for."""
    return "aarch64" if hardware.compute.isa in ("neon", "sve") else "x86_64"


def spec_name(key: str) -> str:
    """Return what the spec of a key's boards is called: specs have lower-case letters, digits and '_'."""
    name = re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_") or "board"
    return f"board_{name}" if re.fullmatch(r"host(_gpu\d*)?", name) else name  # these are this machine's


def describe(tracker: str, key: str, wait_s: float, limit_s: float) -> BoardDescription:
    """Ask the tracker for a board and the board what it is.

    Parameters
    ----------
    tracker : str
        "HOST:PORT".
    wait_s : float
        Most seconds to wait for a free board.
    limit_s : float
        The board ends the session by itself after as many.

    Raises
    ------
    DeviceError
        The tracker cannot be reached, no board is free, or it tells nothing usable.
    BuildError
        There is no linker for its processor.
    """
    place = tracker_of(tracker)
    board = connected(place, checked_key(key), wait_s=wait_s)
    board.limit(limit_s)
    return described(board, key, boards_of(place, key))


def described(board: Board, key: str, boards: int = 1) -> BoardDescription:
    """Ask a board what it is; errors as `describe`."""
    folder = Path(tempfile.mkdtemp(prefix="anatune-"))
    try:
        allowed = _copy_system(board, folder)
        spec = detect_cpu(folder, allowed=allowed)
    except OSError as error:
        raise DeviceError(f"board {board.name} cannot be described: {(error.strerror or 'no space').lower()}") from None
    except DeviceError as error:
        raise DeviceError(f"board {board.name}: {str(error).replace(str(folder), '')}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    release = (board.file("/proc/sys/kernel/osrelease") or "").strip()
    here = environment()
    there = Environment(
        cpu=spec.model,
        cores=len(allowed) or spec.compute.num_cores,
        platform=f"Linux-{printable(release) or 'unknown'}-{board.machine}",
        python="",
        numpy=here.numpy,
        anatune=here.anatune,
        tvm=here.tvm,
    )
    named = msgspec.structs.replace(spec, name=spec_name(key))
    return BoardDescription(board.name, key, named, there, _free_bytes(board), max(1, boards))


def other_device(hardware: CpuSpec, there: CpuSpec) -> str:
    """Return why a board is not the device that a session is for, in words; "" if it is.

    Clocks are left out: what a system says of them changes from one moment to the next.
    """
    if (hardware.arch, hardware.compute.isa) != (there.arch, there.compute.isa):
        return (
            f"it is {there.model} ({there.arch}, {there.compute.isa}), expected {hardware.model} ({hardware.arch}, "
            f"{hardware.compute.isa})"
        )
    if hidden := sorted({*(there.hidden_features or ())} - {*(hardware.hidden_features or ())}):
        return f"it does not offer {', '.join(hidden)}, which the spec of {hardware.model} has"
    if hardware.compute.num_cores != there.compute.num_cores:
        return f"it has {there.compute.num_cores} cores, expected {hardware.compute.num_cores} ({hardware.model})"
    return ""


def _copy_system(board: Board, root: Path) -> set[int]:
    """Copy what `detect_cpu` reads from the board into a folder; return the processors that its server may use."""
    cpuinfo = printable(_cpuinfo(board))
    _keep(root, "proc/cpuinfo", cpuinfo)
    present = sorted({int(number) for number in re.findall(r"(?m)^processor\s*:\s*(\d+)\s*$", cpuinfo)})[:_MOST_CPUS]
    told = re.search(r"(?m)^Cpus_allowed_list:\s*([\d,-]+)", board.file("/proc/self/status") or "")
    allowed = cpu_list(told[1]) & set(present) if told else set(present)
    for path in _OF_ALL:
        _keep(root, path, board.file(f"/{path}"))
    sockets: set[str | None] = set()
    for cpu in sorted(allowed) or present:
        folder = f"{_CPUS}/cpu{cpu}"
        texts = {name: board.file(f"/{folder}/{name}") for name in _OF_CPU}
        for name, text in texts.items():
            _keep(root, f"{folder}/{name}", text)
        socket = texts["topology/physical_package_id"]
        if socket in sockets:
            continue
        sockets.add(socket)  # caches are asked of the first processor of each
        for index in range(_CACHES):
            for name in _OF_CACHE:
                path = f"{folder}/cache/index{index}/{name}"
                _keep(root, path, board.file(f"/{path}"))
    return allowed or set(present)


def _cpuinfo(board: Board) -> str:
    """Return the text of /proc/cpuinfo, written anew where it does not speak of the processor that runs our code.

    An emulator passes on the text of the machine that it runs on.
    """
    text = board.file("/proc/cpuinfo") or ""
    if (board.machine == "aarch64") == ("CPU implementer" in text):
        return text
    count = len(re.findall(r"(?m)^processor\s*:", text)) or 1
    if board.machine != "aarch64":
        return text
    midr, bits = board.errand("processor"), board.errand("capability", 16)
    features = " ".join(name for bit, name in _ARM_FEATURES.items() if bits >> bit & 1)
    lines = f"CPU implementer : {midr >> 24 & 0xFF:#x}\nCPU part : {midr >> 4 & 0xFFF:#x}\nFeatures : {features}\n"
    return "\n".join(f"processor : {cpu}\n{lines}" for cpu in range(count))


def _free_bytes(board: Board) -> int | None:
    found = re.search(r"(?m)^MemAvailable:\s*(\d+) kB", board.file("/proc/meminfo") or "")
    return 1024 * int(found[1]) if found else None


def _keep(root: Path, path: str, text: str | None) -> None:
    if text is not None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


_Answer = TypeVar("_Answer")

WAIT_S = 20.0
"""Most seconds to wait for a free board."""
_TALK_S = 60.0
"""Most seconds that telling takes, TVM's import included; hundreds of small files over a slow network."""


def ask_board(tracker: str, key: str, *, wait_s: float = WAIT_S) -> BoardDescription:
    """Return what a free board of the key is.

    Raises
    ------
    DeviceError
        The tracker or the board cannot be reached, or does not answer.
    MissingDependencyError
        TVM is not installed.
    RunError
        There is no linker for the board's processor, or no process can be started.
    """
    arguments = {"tracker": tracker, "key": key, "wait_s": wait_s, "limit_s": _TALK_S}
    function = "anatune.fleet.boards.description:describe"
    return answered(BoardDescription, function, arguments, "described", limit_s=wait_s + _TALK_S, start_s=_TALK_S)


def answered(
    kind: type[_Answer], function: str, arguments: Mapping[str, object], done: str, *, limit_s: float, start_s: float
) -> _Answer:
    """Return what a function answers that talks with a board, in a process of its own.

    Parameters
    ----------
    kind : type
        Of the answer.
    function, arguments
        ``module:function`` and its keywords, "tracker" and "key" among them.
    done : str
        What is done to the board, for the message: "described".
    limit_s, start_s : float
        Most seconds of the function; of starting the process besides.

    Raises
    ------
    DeviceError, MissingDependencyError, RunError
        As `ask_board`.
    """
    board = f"board {arguments['key']} of tracker {arguments['tracker']}"
    worker = Worker("board")
    try:
        worker.submit(function, arguments, limit_s)
        reply = worker.wait(limit_s + start_s)
        if isinstance(reply.value, kind):
            return reply.value
        if reply.kind == "timeout":
            raise DeviceError(f"{board} says nothing: {reply.message}")
        raise refusal(reply, f"{board} cannot be {done}")
    finally:
        worker.kill()
