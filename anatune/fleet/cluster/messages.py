"""Messages between a session and its workers: structs as MessagePack, decoded strictly and checked before use."""

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
    """The description of a worker; it is immutable and can be written to and read from JSON.

    Attributes
    ----------
    name : str
        The name in measurements and records.
    code : str
        The digest of the worker's anatune sources.
    environment : Environment
        The worker's processor, the cores that it may use, and versions.
    builders : int
        The number of schedules that it builds at once.
    device : CpuSpec or GpuSpec, optional
        The device that it measures on, with its clocks; None if it only builds.
    peak_flop_per_s : float, optional
        The best rate of multiply-adds when it joined, of one core of a CPU or of a whole GPU; None if it is not
        compared.
    """

    name: str
    code: str
    environment: Environment
    builders: int
    device: CpuSpec | GpuSpec | None = None
    peak_flop_per_s: float | None = None

    @property
    def words(self) -> str:
        """The model of the device, or "builds only"."""
        return "builds only" if self.device is None else self.device.model


@functools.cache
def code_digest() -> str:
    """Return a digest of anatune's sources and tables; session and workers have to have the same one."""
    root = Path(__file__).parents[2]
    total = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*.*") if path.suffix in (".py", ".toml")):
        total.update(f"{path.relative_to(root).as_posix()}\n".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


class DamagedError(RunError):
    """A built kernel cannot be used; `part` is its index among several, whose builder is responsible."""

    def __init__(self, message: str, part: int = 0) -> None:
        super().__init__(message)
        self.part = part


class _ArtifactKind(NamedTuple):
    """The artifact of a kind of device: its class, the field with the path of its file, and the file's suffix."""

    artifact: str
    file: str
    suffix: str


_KINDS = {
    "cpu": _ArtifactKind("anatune.codegen.cpu.artifact:CpuArtifact", "library", ".so"),
    "gpu": _ArtifactKind("anatune.codegen.cuda.artifact:GpuArtifact", "image", ".cubin"),
}


class Packed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A built kernel as a message; it is immutable.

    Attributes
    ----------
    kind : {"cpu", "gpu"}
        The kind of device.
    artifact : bytes
        The `CpuArtifact` or `GpuArtifact` as JSON, with the digest in the place of the file's path.
    sha256 : str
        The digest of `content`, hexadecimal.
    content : bytes
        The shared library or the cubin.
    """

    kind: Literal["cpu", "gpu"]
    artifact: bytes
    sha256: str
    content: bytes


class SessionSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The setting that all kernels of a session share.

    Attributes
    ----------
    session : str
        The name of the session: 32 hexadecimal digits.
    workload, hardware, threads, limits, seed, least_samples
        The same as for a local measurer.
    conditions : dict of str to str
        Other conditions that times depend on: "cold", "template" and "l2".
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
    """The request to build a schedule, or the reference kernel if `schedule` is None."""

    session: str
    number: int
    hardware: CpuSpec | GpuSpec
    threads: int
    limits: Limits
    schedule: Schedule | None = None


class BuildResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a build: one of kernel, failure or trouble.

    Attributes
    ----------
    packed : Packed, optional
        The built kernel.
    failure : Measurement, optional
        The failure that the schedule caused.
    trouble : str
        The error that the worker caused, "" if none.
    build_s : float
        The wall time of the build.
    """

    packed: Packed | None = None
    failure: Measurement | None = None
    trouble: str = ""
    build_s: float = 0.0


class MeasureRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request to check and time built schedules.

    Attributes
    ----------
    schedules : tuple of Schedule
        One schedule, or several that are timed in turn.
    incumbent : float or None
        The best relative time, see `Measurer`.
    budget_s : float or None
        The seconds for timing in turn; None for a single schedule.
    """

    session: str
    number: int
    schedules: tuple[Schedule, ...]
    incumbent: float | None = None
    budget_s: float | None = None


class WorkerAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's answer to a lease (number 0) or a `MeasureRequest`.

    Attributes
    ----------
    session, number
        The session and number of the request.
    measurements : tuple of Measurement
        One measurement for each schedule; empty if there was trouble.
    failed_build : bool
        Whether the measurement is the failure of a build, so that nothing ran.
    trouble : str
        The reason in one line why the worker could not measure, "" if none.
    whose : {"worker", "builder", "lease"}
        The cause of the trouble: this worker, the worker that built, or the lease, which has its own answer.
    part : int
        The index of the schedule whose build is the cause.
    """

    session: str
    number: int
    measurements: tuple[Measurement, ...] = ()
    failed_build: bool = False
    trouble: str = ""
    whose: Literal["worker", "builder", "lease"] = "worker"
    part: int = 0


class Running(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that a worker processes: its stage ("build", "wait", "set up", "run"), and for how many seconds."""

    session: str
    number: int
    stage: str
    seconds: float


class WorkerStanding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state that a worker reports at regular intervals.

    Attributes
    ----------
    running : tuple of Running
        The requests that it is processing.
    sessions : int
        The number of sessions for which it is set up.
    built, measured : int
        The number of builds and measurements since it started.
    peak_flop_per_s : float, optional
        The best rate of multiply-adds since it started; `WorkerDescription` has the first one.
    """

    running: tuple[Running, ...] = ()
    sessions: int = 0
    built: int = 0
    measured: int = 0
    peak_flop_per_s: float | None = None


_Message = TypeVar("_Message", bound=msgspec.Struct)


def encode(message: msgspec.Struct) -> bytes:
    """Encode a message as bytes."""
    return msgspec.msgpack.encode(message)


def decode(content: object, kind: type[_Message]) -> _Message:
    """Decode a message of this class.

    Raises
    ------
    RunError
        The content is not such a message.
    """
    if not isinstance(content, bytes):
        raise RunError(f"the message is {type(content).__name__}, expected {kind.__name__} as bytes")
    try:
        return from_message(content, kind)
    except (msgspec.DecodeError, RecursionError, AnatuneError) as error:
        raise RunError(f"the message is not a valid {kind.__name__}: {error}") from None


def check_measurement(measurement: Measurement) -> Measurement:
    """Check a received measurement, and return it with its message cut to one line of bounded length.

    Raises
    ------
    RunError
        A time or energy is not a valid number, or samples are missing.
    """
    times, references = measurement.times_s, measurement.reference_times_s
    if len(times) != len(references) or len(times) > _MOST_SAMPLES:
        raise RunError(f"a measurement has {len(times)} samples, but {len(references)} of the reference kernel")
    if not all(math.isfinite(sample) and sample > 0 for sample in (*times, *references)):
        raise RunError("a measurement has a sample that is not a positive number of seconds")
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in (measurement.build_s, measurement.run_s)):
        raise RunError("a measurement has a wall time that is not a number of seconds")
    energy_j = measurement.energy_j
    if energy_j is not None and not (math.isfinite(energy_j) and energy_j > 0):
        raise RunError("a measurement has an energy that is not a positive number of joules")
    if measurement.outcome is Outcome.OK and not times:
        raise RunError("a measurement is ok, but has no samples")
    if measurement.outcome is not Outcome.OK and times:
        raise RunError(f"a measurement is {measurement.outcome.value}, but has samples")
    message = " ".join(measurement.message.split())[:_MOST_MESSAGE]
    return msgspec.structs.replace(measurement, message=message)


def pack(artifact: object, kind: Literal["cpu", "gpu"]) -> Packed:
    """Pack an artifact together with the bytes of its file.

    Raises
    ------
    RunError
        The file cannot be read.
    """
    assert isinstance(artifact, msgspec.Struct)
    form = _KINDS[kind]
    path = getattr(artifact, form.file)
    try:
        content = read_file(path)
    except OSError as error:
        raise RunError(f"{path}: {reason(error)}") from None
    digest = hashlib.sha256(content).hexdigest()
    named = msgspec.structs.replace(artifact, **{form.file: digest})
    return Packed(kind, msgspec.json.encode(named), digest, content)


def unpack(packed: Packed, folder: Path, schedule_key: str) -> object:
    """Write an artifact's file into `folder`, which exists, and return the artifact.

    Parameters
    ----------
    schedule_key : str
        The key of the expected schedule; "" for the reference kernel.

    Raises
    ------
    DamagedError
        The content is damaged, or belongs to another schedule.
    RunError
        The file cannot be written.
    """
    form = _KINDS[packed.kind]
    if len(packed.content) > MOST_BYTES or hashlib.sha256(packed.content).hexdigest() != packed.sha256:
        raise DamagedError("a built kernel is damaged: its content does not have the digest of the build")
    try:
        artifact: CpuArtifact | GpuArtifact = from_json(packed.artifact, resolve(form.artifact))
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedError(f"a built kernel is damaged: {error}") from None
    if artifact.schedule_key != schedule_key or getattr(artifact, form.file) != packed.sha256:
        raise DamagedError(f"a built kernel is of schedule {artifact.schedule_key!r}, expected {schedule_key!r}")
    path = folder / f"{packed.sha256[:32]}{form.suffix}"
    try:
        path.write_bytes(packed.content)
    except OSError as error:
        raise RunError(f"{path}: {reason(error)}; free some space on the worker") from None
    return msgspec.structs.replace(artifact, **{form.file: str(path)})


def line_of(error: BaseException | None) -> str:
    """Return the message of an error in one line, or its class if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
