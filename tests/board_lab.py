"""A lab on the loopback for tests: a tracker of TVM's and boards, each server in a process of its own.

Boards are this machine, behind TVM's own server in Python or behind ours without Python; or an emulated AArch64 board,
behind ours with the libraries of TVM's AArch64 wheels. `.ci/run` fetches those into ANATUNE_AARCH64_WHEELS.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import anatune.fleet.boards

SOURCE = Path(anatune.fleet.boards.__file__).parent / "server" / "board.c"
CROSS = "aarch64-linux-gnu-gcc"
WHEELS = Path(os.environ.get("ANATUNE_AARCH64_WHEELS", Path.home() / ".cache" / "anatune-tests" / "aarch64"))
START_S = 90.0

_TRACKER = """
import sys
from tvm.rpc.tracker import PopenTrackerServerState as State
state = State("127.0.0.1", *map(int, sys.argv[1:]))
print("port", state.port, flush=True)
"""
_SERVER = """
import sys
from tvm.rpc.server import PopenRPCServerState as State
tracker, key, first, last = sys.argv[1:]
host, port = tracker.split(":")
State("127.0.0.1", int(first), int(last), tracker_addr=(host, int(port)), key=key)
"""


def free_ports() -> tuple[int, int]:
    """Return the first of many ports and the one behind the last; the first was free, and a server takes one that is.

    Somebody else may take any of them before the server does: it says which one it has.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = min(probe.getsockname()[1], 65_000)
    return first, first + 200


def missing_for_arm() -> str:
    """Why there can be no emulated board; "" if there can."""
    lacking = [tool for tool in ("qemu-aarch64", CROSS) if shutil.which(tool) is None]
    if lacking:
        return f"{', '.join(lacking)} cannot be found"
    found = [name for name in ("apache_tvm-", "apache_tvm_ffi-") if not list(WHEELS.glob(f"{name}*aarch64.whl"))]
    return f"{' and '.join(found)}*aarch64.whl are not in {WHEELS} (ANATUNE_AARCH64_WHEELS)" if found else ""


def compiled_server(folder: Path, compiler: str = "cc") -> Path:
    """Compile our server, as docs/howto/fleets.md says."""
    import tvm_ffi

    program = folder / f"server-{compiler}"
    if not program.exists():
        include = tvm_ffi.libinfo.find_include_path()
        words = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-I", include, "-o", program, SOURCE, "-ldl"]
        subprocess.run(words, check=True)
    return program


def host_libraries(folder: Path) -> Path:
    """A folder with what a board with this machine's processor needs of TVM."""
    import tvm
    import tvm_ffi

    place = folder / "libraries"
    place.mkdir(exist_ok=True)
    own = Path(tvm.__file__).parent / "lib"
    for path in (own / "libtvm_runtime.so", own / "libtvm_runtime_extra.so", Path(tvm_ffi.libinfo.find_libtvm_ffi())):
        with contextlib.suppress(FileExistsError):
            (place / path.name).symlink_to(path)
    return place


def arm_libraries(folder: Path) -> Path:
    """The same of the AArch64 wheels."""
    place = folder / "libraries-arm"
    place.mkdir(exist_ok=True)
    for wheel in WHEELS.glob("apache_tvm*aarch64.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in ("libtvm_runtime.so", "libtvm_runtime_extra.so", "libtvm_ffi.so"):
                for entry in archive.namelist():
                    if Path(entry).name == name and not (place / name).exists():
                        (place / name).write_bytes(archive.read(entry))
    return place


class Lab:
    """A tracker and its boards; a context manager that ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.processes: dict[str, subprocess.Popen] = {}
        self._number = 0

    def __enter__(self):
        self.start_tracker()
        return self

    def __exit__(self, *details):
        for name in list(self.processes):
            self.end(name)

    def _start(self, name: str, words: list, **environment: str) -> subprocess.Popen:
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115  the process writes it
        with log:
            process = subprocess.Popen(
                list(map(str, words)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder), **environment},
            )
        self.processes[name] = process
        return process

    @property
    def tracker(self) -> str:
        """Address of the tracker."""
        return f"127.0.0.1:{self.port}"

    def start_tracker(self) -> None:
        """Start a tracker, at the same address as the one before."""
        log = self.folder / "tracker.log"
        before = log.stat().st_size if log.exists() else 0
        ports = (self.port, self.port + 1) if self.port else free_ports()
        process = self._start("tracker", [sys.executable, "-c", _TRACKER, *ports])
        until = time.monotonic() + START_S
        while time.monotonic() < until and process.poll() is None:
            said = re.search(r"^port (\d+)\n", log.read_text()[before:], re.MULTILINE)
            if said:
                self.port = int(said[1])
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                    return
            time.sleep(0.05)
        raise AssertionError(log.read_text())

    def python_board(self, key: str, **environment: str) -> str:
        """Start TVM's own server; returns its name."""
        return self._board(key, [sys.executable, "-c", _SERVER, self.tracker, key], **environment)

    def small_board(self, key: str) -> str:
        """Start our server without Python."""
        program, libraries = compiled_server(self.folder), host_libraries(self.folder)
        words = [program, "--tracker", self.tracker, "--key", key, "--libraries", libraries, "--work", self.folder]
        return self._board(key, words, options=True)

    def arm_board(self, key: str, processor: str = "cortex-a72") -> str:
        """Start an emulated AArch64 board."""
        program, libraries = compiled_server(self.folder, CROSS), arm_libraries(self.folder)
        words = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu", processor, program]
        words += ["--tracker", self.tracker, "--key", key, "--libraries", libraries, "--work", self.folder]
        return self._board(key, words, options=True)

    def _board(self, key: str, words: list, *, options: bool = False, **environment: str) -> str:
        from anatune.fleet.boards.tracker import count_boards, tracker_of

        before = count_boards(tracker_of(self.tracker), key)
        self._number += 1
        name, (first, behind) = f"{key}-{self._number}", free_ports()
        ports = ["--port", first, "--port-end", behind] if options else [first, behind]
        process = self._start(name, [*words, *ports], **environment)
        until = time.monotonic() + START_S
        while count_boards(tracker_of(self.tracker), key) <= before:
            assert process.poll() is None, (self.folder / f"{name}.log").read_text()
            assert time.monotonic() < until, (self.folder / f"{name}.log").read_text()
            time.sleep(0.05)
        return name

    def pid(self, name: str) -> int:
        return self.processes[name].pid

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a server and to the process of its session."""
        os.killpg(self.processes[name].pid, number)

    def end(self, name: str) -> None:
        """Kill a server, or the tracker, at once."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
