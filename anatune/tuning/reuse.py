"""What records already know of a workload on a device: the schedules to begin with."""

from __future__ import annotations

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.records.reader import OnDamage
from anatune.records.schema import Record
from anatune.records.store import RecordStore

__all__ = ["MOST_REUSED", "recorded_leaders", "same_device"]

MOST_REUSED = 4
"""Recorded schedules that a session begins with."""


def same_device(one: CpuSpec | GpuSpec, other: CpuSpec | GpuSpec) -> bool:
    """Whether two specs are of one device: detection and calibration may have read other numbers."""
    return (type(one), one.model, one.arch) == (type(other), other.model, other.arch)


def recorded_leaders(
    store: RecordStore,
    workload: Workload,
    hardware: CpuSpec | GpuSpec,
    threads: int,
    count: int,
    *,
    template: str | None = None,
    accuracy: str = STANDARD,
    on_damage: OnDamage | None = None,
) -> list[Record]:
    """Return records of the best schedules that were measured on this very kind of device, fastest first.

    The device is found by its name, as sessions that are resumed.
    """
    found = store.leaders(
        workload, hardware.name, threads, count, template=template, accuracy=accuracy, on_damage=on_damage
    )
    return [record for record in found if same_device(record.session.hardware, hardware)]
