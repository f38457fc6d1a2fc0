"""The description of a board: the spec of its processor and its environment, from files of its system.

A separate process asks the board, so that a board that stops answering does not block for long.
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
from anatune.fleet.boards.connection import Board, open_board
from anatune.fleet.boards.tracker import check_key, count_boards, tracker_of
from anatune.measure.cpu.detect import cpu_list, detect_cpu
from anatune.measure.run.process import Worker, refusal
from anatune.printable import printable
from anatune.records.environment import Environment, environment

_CPUS = "sys/devices/system/cpu"
_SYSTEM_FILES = (
    "sys/devices/cpu_core/cpus",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us",
)
_CPU_FILES = (
    "cpu_capacity",
    "cpufreq/cpuinfo_max_freq",
    *(f"topology/{name}" for name in ("physical_package_id", "die_id", "thread_siblings_list", "core_id")),
)
_CACHE_FILES = ("size", "type", "level", "shared_cpu_list", "ways_of_associativity", "coherency_line_size")
_CACHES = 5
"""The cache folders of a processor that are read: two of the first level, two more, one in reserve."""

_MOST_CPUS = 1024
_ARM_FEATURES = {0: "fp", 1: "asimd", 9: "fphp", 10: "asimdhp", 20: "asimddp", 22: "sve"}
"""Bits of AT_HWCAP -> names in /proc/cpuinfo. Source: Linux, arch/arm64/include/uapi/asm/hwcap.h."""


class BoardDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The description of a board; it is immutable and can be written to and read from JSON.

    Attributes
    ----------
    name : str
        The key and the address of the board's server.
    key : str
        The key under which the board is registered.
    hardware : CpuSpec
        The detected processor, with a name made from the key.
    environment : Environment
        The environment in the records of its trials. TVM's version is that of this machine, which generates code.
    free_bytes : int or None
        The free memory of the board, None if not known.
    boards : int
        The number of boards that were registered under the key.
    """

    name: str
    key: str
    hardware: CpuSpec
    environment: Environment
    free_bytes: int | None = None
    boards: int = 1


def machine_of(hardware: CpuSpec) -> str:
    """Return the processor of a spec, one of `connection.MACHINES`."""
    return "aarch64" if hardware.compute.isa in ("neon", "sve") else "x86_64"


def spec_name(key: str) -> str:
    """Return the name of the spec for boards with this key: lower-case letters, digits and '_'."""
    name = re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_") or "board"
    return f"board_{name}" if re.fullmatch(r"host(_gpu\d*)?", name) else name  # names of this machine


def describe(tracker: str, key: str, wait_s: float, limit_s: float) -> BoardDescription:
    """Ask the tracker for a board, and the board for its description.

    Parameters
    ----------
    tracker : str
        The address of the tracker, "HOST:PORT".
    wait_s : float
        The most seconds to wait for a free board.
    limit_s : float
        The seconds after which the board ends the session by itself.

    Raises
    ------
    DeviceError
        The tracker cannot be reached, no board is free, or the board's files cannot be used.
    BuildError
        There is no linker for the board's processor.
    """
    address = tracker_of(tracker)
    board = open_board(address, check_key(key), wait_s=wait_s)
    board.limit(limit_s)
    return describe_board(board, key, count_boards(address, key))


def describe_board(board: Board, key: str, boards: int = 1) -> BoardDescription:
    """Ask a board for its description, with the errors of `describe`."""
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
    local = environment()
    board_environment = Environment(
        cpu=spec.model,
        cores=len(allowed) or spec.compute.num_cores,
        platform=f"Linux-{printable(release) or 'unknown'}-{board.machine}",
        python="",
        numpy=local.numpy,
        anatune=local.anatune,
        tvm=local.tvm,
    )
    hardware = msgspec.structs.replace(spec, name=spec_name(key))
    return BoardDescription(board.name, key, hardware, board_environment, _free_bytes(board), max(1, boards))


def explain_difference(hardware: CpuSpec, board: CpuSpec) -> str:
    """Return why a board is not the device of a session, or an empty text if it is.

    Clocks are not compared, because the values that a system reports change all the time.
    """
    if (hardware.arch, hardware.compute.isa) != (board.arch, board.compute.isa):
        return (
            f"it is {board.model} ({board.arch}, {board.compute.isa}), expected {hardware.model} ({hardware.arch}, "
            f"{hardware.compute.isa})"
        )
    if hidden := sorted({*(board.hidden_features or ())} - {*(hardware.hidden_features or ())}):
        return f"it does not have {', '.join(hidden)}, which the spec of {hardware.model} has"
    if hardware.compute.num_cores != board.compute.num_cores:
        return f"it has {board.compute.num_cores} cores, expected {hardware.compute.num_cores} ({hardware.model})"
    return ""


def _copy_system(board: Board, root: Path) -> set[int]:
    """Copy the files that `detect_cpu` reads from the board to a folder; return the CPUs that its server may use."""
    cpuinfo = printable(_cpuinfo(board))
    _write_copy(root, "proc/cpuinfo", cpuinfo)
    present = sorted({int(number) for number in re.findall(r"(?m)^processor\s*:\s*(\d+)\s*$", cpuinfo)})[:_MOST_CPUS]
    allowed_match = re.search(r"(?m)^Cpus_allowed_list:\s*([\d,-]+)", board.file("/proc/self/status") or "")
    allowed = cpu_list(allowed_match[1]) & set(present) if allowed_match else set(present)
    for path in _SYSTEM_FILES:
        _write_copy(root, path, board.file(f"/{path}"))
    sockets: set[str | None] = set()
    for cpu in sorted(allowed) or present:
        folder = f"{_CPUS}/cpu{cpu}"
        texts = {name: board.file(f"/{folder}/{name}") for name in _CPU_FILES}
        for name, text in texts.items():
            _write_copy(root, f"{folder}/{name}", text)
        socket = texts["topology/physical_package_id"]
        if socket in sockets:
            continue
        sockets.add(socket)  # the caches of the first CPU of each socket are enough
        for index in range(_CACHES):
            for name in _CACHE_FILES:
                path = f"{folder}/cache/index{index}/{name}"
                _write_copy(root, path, board.file(f"/{path}"))
    return allowed or set(present)


def _cpuinfo(board: Board) -> str:
    """Return the text of /proc/cpuinfo, generated from the processor's registers if it describes another processor.

    Under an emulator, the file describes the machine that runs the emulator.
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
    match = re.search(r"(?m)^MemAvailable:\s*(\d+) kB", board.file("/proc/meminfo") or "")
    return 1024 * int(match[1]) if match else None


def _write_copy(root: Path, path: str, text: str | None) -> None:
    if text is not None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


_Answer = TypeVar("_Answer")

WAIT_S = 20.0
"""The most seconds to wait for a free board."""
_TALK_S = 60.0
"""The most seconds for a description, with TVM's import: hundreds of small files over a slow network."""


def ask_board(tracker: str, key: str, *, wait_s: float = WAIT_S) -> BoardDescription:
    """Return the description of a free board with this key.

    Raises
    ------
    DeviceError
        The tracker or the board cannot be reached, or does not answer.
    MissingDependencyError
        TVM is not installed.
    RunError
        There is no linker for the board's processor, or the process cannot be started.
    """
    arguments = {"tracker": tracker, "key": key, "wait_s": wait_s, "limit_s": _TALK_S}
    function = "anatune.fleet.boards.description:describe"
    return ask_process(BoardDescription, function, arguments, "described", limit_s=wait_s + _TALK_S, start_s=_TALK_S)


def ask_process(
    kind: type[_Answer], function: str, arguments: Mapping[str, object], done: str, *, limit_s: float, start_s: float
) -> _Answer:
    """Call a function that talks with a board in a separate process, and return its result.

    Parameters
    ----------
    kind : type
        The type of the result.
    function, arguments
        The function as ``module:function``, and its keyword arguments, with "tracker" and "key" among them.
    done : str
        The participle for the message, such as "described".
    limit_s, start_s : float
        The most seconds of the function, and of starting the process in addition.

    Raises
    ------
    DeviceError, MissingDependencyError, RunError
        The errors of `ask_board`.
    """
    board = f"board {arguments['key']} of tracker {arguments['tracker']}"
    worker = Worker("board")
    try:
        worker.submit(function, arguments, limit_s)
        reply = worker.wait(limit_s + start_s)
        if isinstance(reply.value, kind):
            return reply.value
        if reply.kind == "timeout":
            raise DeviceError(f"{board} does not answer: {reply.message}")
        raise refusal(reply, f"{board} cannot be {done}")
    finally:
        worker.kill()
