"""What travels between a session and its workers: structs as MessagePack, decoded strictly, checked before use."""

from __future__ import annotations

import functools
import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import msgspec

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.core.workload.nest import Workload
from anatune.decoding import from_json, from_message
from anatune.errors import AnatuneError, RunError
from anatune.files import MOST_BYTES, read_file, reason
from anatune.measure.run.build_processes import Limits
from anatune.named import resolve
from anatune.records.environment import Environment

if TYPE_CHECKING:
    from anatune.codegen.cpu.artifact import CpuArtifact
    from anatune.codegen.cuda.artifact import GpuArtifact

_MOST_SAMPLES = 100_000
_MOST_MESSAGE = 2000


class WorkerDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A worker. Immutable; JSON both ways.

    Attributes
    ----------
    name : str
        As measurements and records have it.
    code : str
        Digest of anatune's own source there.
    environment : Environment
        Its processor, the cores that it may use, versions.
    builders : int
        How many schedules it builds at once.
    device : CpuSpec or GpuSpec, optional
        What it measures on, clocks among its numbers; None: it only builds.
    peak_flop_per_s : float, optional
        What multiply-adds reached when it joined, at best: of one core of a CPU, of the whole of a GPU; None: it is
        not compared.
    """

    name: str
    code: str
    environment: Environment
    builders: int
    device: CpuSpec | GpuSpec | None = None
    peak_flop_per_s: float | None = None

    @property
    def words(self) -> str:
        """The device in words."""
        return "builds only" if self.device is None else self.device.model


@functools.cache
def code_digest() -> str:
    """Return a digest of anatune's sources and tables, by name and contents: workers run what the session would."""
    root = Path(__file__).parents[2]
    total = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*.*") if path.suffix in (".py", ".toml")):
        total.update(f"{path.relative_to(root).as_posix()}\n".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


class DamagedError(RunError):
    """What was built cannot be used: whoever built it is to blame, of several kernels that of the one at `part`."""

    def __init__(self, message: str, part: int = 0) -> None:
        super().__init__(message)
        self.part = part


class _Kind(NamedTuple):
    """How artifacts of a kind of device are packed: their class, the field that names their file, its suffix."""

    artifact: str
    file: str
    suffix: str


_KINDS = {
    "cpu": _Kind("anatune.codegen.cpu.artifact:CpuArtifact", "library", ".so"),
    "gpu": _Kind("anatune.codegen.cuda.artifact:GpuArtifact", "image", ".cubin"),
}


class Packed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A built kernel. Immutable.

    Attributes
    ----------
    kind : {"cpu", "gpu"}
        Of the device that it is for.
    artifact : bytes
        JSON of the `CpuArtifact` or `GpuArtifact`, its file named by its digest.
    sha256 : str
        Of `content`, hexadecimal.
    content : bytes
        The shared library or the cubin.
    """

    kind: Literal["cpu", "gpu"]
    artifact: bytes
    sha256: str
    content: bytes


class SessionSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all kernels of a session share.

    Attributes
    ----------
    session : str
        Its name: 32 hexadecimal digits.
    workload, hardware, threads, limits, seed, least_samples
        As a measurer takes them.
    conditions : dict of str to str
        What times depend on beside that: "cold"; "template" and "l2".
    """

    session: str
    workload: Workload
    hardware: CpuSpec | GpuSpec
    threads: int
    limits: Limits
    seed: int
    conditions: dict[str, str]
    least_samples: int = 1


class BuildRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule to build; None: the kernel that is timed beside all others."""

    session: str
    number: int
    hardware: CpuSpec | GpuSpec
    threads: int
    limits: Limits
    schedule: Schedule | None = None


class Built(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of a build: one of the three.

    Attributes
    ----------
    packed : Packed, optional
        The kernel.
    failure : Measurement, optional
        The schedule's own fault.
    trouble : str
        The worker's: it cannot build.
    build_s : float
        Wall time.
    """

    packed: Packed | None = None
    failure: Measurement | None = None
    trouble: str = ""
    build_s: float = 0.0


class MeasureRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Built schedules to check and time.

    Attributes
    ----------
    schedules : tuple of Schedule
        One, or those that take turns.
    incumbent : float or None
        As `Measurer` has it.
    budget_s : float or None
        How long they take turns; None: there is one, timed by itself.
    """

    session: str
    number: int
    schedules: tuple[Schedule, ...]
    incumbent: float | None = None
    budget_s: float | None = None


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker answers to a lease (number 0) or a `MeasureRequest`.

    Attributes
    ----------
    session, number
        Of the request.
    measurements : tuple of Measurement
        One for each schedule; none if there was trouble.
    failed_build : bool
        The measurement is that of the build: nothing ran here.
    trouble : str
        Why this worker cannot measure, in one line.
    whose : {"worker", "builder", "lease"}
        Whose trouble: its own, of who built, of the lease, which is answered by itself.
    part : int
        Of which schedule, if of who built.
    """

    session: str
    number: int
    measurements: tuple[Measurement, ...] = ()
    failed_build: bool = False
    trouble: str = ""
    whose: Literal["worker", "builder", "lease"] = "worker"
    part: int = 0


class Running(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that a worker is at: which one, what it does ("build", "wait", "set up", "run"), for how long, s."""

    session: str
    number: int
    stage: str
    seconds: float


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker tells with each sign of life.

    Attributes
    ----------
    running : tuple of Running
        What it is at.
    sessions : int
        For which it is set up.
    built, measured : int
        Since it started.
    peak_flop_per_s : float, optional
        The best that multiply-adds have reached since, as `WorkerDescription` has what they reached first.
    """

    running: tuple[Running, ...] = ()
    sessions: int = 0
    built: int = 0
    measured: int = 0
    peak_flop_per_s: float | None = None


_Message = TypeVar("_Message", bound=msgspec.Struct)


def encode(message: msgspec.Struct) -> bytes:
    """Return a message as bytes."""
    return msgspec.msgpack.encode(message)


def decode(content: object, kind: type[_Message]) -> _Message:
    """Return the message of a kind.

    Raises
    ------
    RunError
        It is none.
    """
    if not isinstance(content, bytes):
        raise RunError(f"{type(content).__name__} arrived, expected {kind.__name__}")
    try:
        return from_message(content, kind)
    except (msgspec.DecodeError, RecursionError, AnatuneError) as error:
        raise RunError(f"what arrived is no {kind.__name__}: {error}") from None


def checked_measurement(measurement: Measurement) -> Measurement:
    """Return a measurement that arrived, its message cut to one line of bounded length.

    Raises
    ------
    RunError
        A time is no finite number of seconds, an energy none of joules, or samples are missing.
    """
    times, references = measurement.times_s, measurement.reference_times_s
    if len(times) != len(references) or len(times) > _MOST_SAMPLES:
        raise RunError(f"a measurement has {len(times)} samples and {len(references)} of the reference kernel")
    if not all(math.isfinite(sample) and sample > 0 for sample in (*times, *references)):
        raise RunError("a measurement has a sample that is no positive number of seconds")
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in (measurement.build_s, measurement.run_s)):
        raise RunError("a measurement has a wall time that is no number of seconds")
    energy_j = measurement.energy_j
    if energy_j is not None and not (math.isfinite(energy_j) and energy_j > 0):
        raise RunError("a measurement has an energy that is no positive number of joules")
    if measurement.outcome is Outcome.OK and not times:
        raise RunError("a measurement is ok and has no samples")
    if measurement.outcome is not Outcome.OK and times:
        raise RunError(f"a measurement is {measurement.outcome.value} and has samples")
    message = " ".join(measurement.message.split())[:_MOST_MESSAGE]
    return msgspec.structs.replace(measurement, message=message)


def pack(artifact: object, kind: Literal["cpu", "gpu"]) -> Packed:
    """Return an artifact with the bytes of its file.

    Raises
    ------
    RunError
        The file cannot be read.
    """
    assert isinstance(artifact, msgspec.Struct)
    how = _KINDS[kind]
    path = getattr(artifact, how.file)
    try:
        content = read_file(path)
    except OSError as error:
        raise RunError(f"{path}: {reason(error)}") from None
    digest = hashlib.sha256(content).hexdigest()
    named = msgspec.structs.replace(artifact, **{how.file: digest})
    return Packed(kind, msgspec.json.encode(named), digest, content)


def unpack(packed: Packed, folder: Path, schedule_key: str) -> object:
    """Write an artifact's file into `folder`, which exists, and return the artifact.

    Parameters
    ----------
    schedule_key : str
        Of the schedule that it has to be built from; "" for the reference kernel.

    Raises
    ------
    DamagedError
        It is not what was packed, or of another schedule.
    RunError
        It cannot be written.
    """
    how = _KINDS[packed.kind]
    if len(packed.content) > MOST_BYTES or hashlib.sha256(packed.content).hexdigest() != packed.sha256:
        raise DamagedError("a built kernel arrived damaged: its contents are not what was built")
    try:
        artifact: CpuArtifact | GpuArtifact = from_json(packed.artifact, resolve(how.artifact))
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedError(f"a built kernel arrived damaged: {error}") from None
    if artifact.schedule_key != schedule_key or getattr(artifact, how.file) != packed.sha256:
        raise DamagedError(
            f"a built kernel of the schedule {artifact.schedule_key!r} arrived, expected {schedule_key!r}"
        )
    path = folder / f"{packed.sha256[:32]}{how.suffix}"
    try:
        path.write_bytes(packed.content)
    except OSError as error:
        raise RunError(f"{path}: {reason(error)}; free some space on the worker") from None
    return msgspec.structs.replace(artifact, **{how.file: str(path)})


def line_of(error: BaseException | None) -> str:
    """Return what an error says, in one line; its class if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
