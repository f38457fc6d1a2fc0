"""What a worker says of itself when it joins, and why a session does without it."""

from __future__ import annotations

import functools
import hashlib
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from anatune.core.hardware.alike import difference
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.records.environment import Environment, environment

__all__ = ["MOST_OFF", "Wanted", "WorkerDescription", "code_digest", "refusal", "wanted_of"]

MOST_OFF = {"gpu": 1.1, "cpu": 2.5}
"""Kind of device -> times as slow or fast as expected that its arithmetic may be to be taken for the same. Of a CPU
much of that is the machine's own: its clock goes from one minute to the next with what its neighbours do, by a factor
of 1.3 on a quiet host and of 2 on a busy one, and trials are compared by the reference kernel beside them."""

_CALIBRATED = "anatune hw calibrate"
"""What sources of measured numbers say (`measure.cpu.host_files.CALIBRATED`)."""


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


class Wanted(msgspec.Struct, frozen=True):
    """What a session asks of workers.

    Attributes
    ----------
    hardware : CpuSpec or GpuSpec
        Its device.
    threads : int
        That kernels run with.
    code : str
        Digest of its own source.
    tvm : str or None
        Version that builds; None: any.
    peak_flop_per_s : float or None
        As `WorkerDescription`; None: any.
    cpu : str or None
        Name of the processor that measures, where one does; None: any.
    """

    hardware: CpuSpec | GpuSpec
    threads: int
    code: str
    tvm: str | None
    peak_flop_per_s: float | None
    cpu: str | None = None


@functools.cache
def code_digest() -> str:
    """Return a digest of anatune's source files, by name and contents: workers run what the session would run."""
    root = Path(__file__).parents[2]
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()}\n".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def wanted_of(hardware: CpuSpec | GpuSpec, threads: int, joined: Iterable[WorkerDescription]) -> Wanted:
    """Return what a session asks, the peak measured by its spec's calibration, else the median of who has joined.

    Of CPUs that only their names tell apart, those of the spec's name count, else those that most have.

    Parameters
    ----------
    joined : iterable of WorkerDescription
        All that are there; those that are refused for other reasons do not count.
    """
    joined = list(joined)
    here = environment().tvm
    versions = Counter(one.environment.tvm for one in joined if one.environment.tvm is not None)
    tvm = here or next((version for version, _ in versions.most_common(1)), None)
    wanted = Wanted(hardware, threads, code_digest(), tvm, None)
    if isinstance(hardware, CpuSpec):
        cpus = [one.environment.cpu for one in joined if one.device is not None and refusal(one, wanted) is None]
        most = next((cpu for cpu, _ in Counter(cpus).most_common(1)), None)
        wanted = msgspec.structs.replace(wanted, cpu=hardware.model if hardware.model in cpus else most)
    wanted = msgspec.structs.replace(wanted, peak_flop_per_s=_calibrated_peak(hardware))
    if wanted.peak_flop_per_s is None:
        peaks = [one.peak_flop_per_s for one in joined if one.peak_flop_per_s and refusal(one, wanted) is None]
        if peaks:
            wanted = msgspec.structs.replace(wanted, peak_flop_per_s=statistics.median(peaks))
    return wanted


def _calibrated_peak(hardware: CpuSpec | GpuSpec) -> float | None:
    """Return the measured peak in a spec, as workers measure theirs; None where nobody measured."""
    if _CALIBRATED not in hardware.compute.source:
        return None
    compute = hardware.compute
    if isinstance(hardware, CpuSpec):
        return hardware.compute.fp32_peak_flop_per_s / hardware.compute.num_cores
    return compute.fp32_peak_flop_per_s * compute.reachable_fraction


def refusal(one: WorkerDescription, wanted: Wanted) -> str | None:
    """Return in one line why a session does without a worker; None if it takes it."""
    if one.environment.anatune != environment().anatune:
        return f"anatune {one.environment.anatune}, the session runs {environment().anatune}; install the same version"
    if one.code != wanted.code:
        return f"other source of anatune ({one.code}, the session's is {wanted.code}); install the same on both"
    if one.environment.tvm not in (None, wanted.tvm):
        return f"TVM {one.environment.tvm}, expected {wanted.tvm}; install the same version"
    if one.device is None:
        return None if one.builders else "has neither a device nor builders"
    differs = difference(wanted.hardware, one.device)
    if differs is not None:
        return f"{differs[1]}, the session tunes for {differs[0]}"
    if isinstance(one.device, CpuSpec) and isinstance(wanted.hardware, CpuSpec):
        if one.environment.cpu != (wanted.cpu or one.environment.cpu):
            return f"{one.environment.cpu}, the session measures on {wanted.cpu}"
        cores = min(one.device.compute.num_cores, one.environment.cores)
        if cores < wanted.threads:
            return f"{cores} cores, kernels of the session run with {wanted.threads} threads"
        missing = sorted(set(one.device.hidden_features or ()) - set(wanted.hardware.hidden_features or ()))
        if missing:
            return f"does not offer {', '.join(missing)}, which the session's {wanted.hardware.name} has"
    if wanted.peak_flop_per_s is not None and one.peak_flop_per_s is not None:
        share = one.peak_flop_per_s / wanted.peak_flop_per_s
        most = MOST_OFF[wanted.hardware.kind]
        if not 1.0 / most <= share <= most:
            return (
                f"multiply-adds reach {one.peak_flop_per_s / 1e9:.1f} GFLOP/s, {share:.0%} of the expected "
                f"{wanted.peak_flop_per_s / 1e9:.1f}; start it again when the machine is quiet"
            )
    return None
