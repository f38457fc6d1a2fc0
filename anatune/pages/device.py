"""The section about a device's spec: its numbers, their sources, and whether they are verified."""

from __future__ import annotations

import msgspec

from anatune.core.hardware.groups import SpecGroup
from anatune.core.hardware.spec import HardwareSpec
from anatune.pages.page import Column, Facts, Section, Table
from anatune.report import units
from anatune.report.devices import unverified_keys

_COLUMNS = (
    Column("number", True, "key in the device's spec file; the name ends with the unit"),
    Column("value", True),
    Column("verified", True, "whether the number was checked"),
    Column("source", True),
)


def device_section(hardware: HardwareSpec) -> Section:
    """Return the section with all numbers of a device's spec and their sources; unverified numbers are marked."""
    unverified = set(unverified_keys(hardware))
    rows: list[tuple[str, str, str, str]] = []
    for name in hardware.__struct_fields__:
        group = getattr(hardware, name)
        if not isinstance(group, SpecGroup):
            continue
        for key, value in msgspec.structs.asdict(group).items():
            if key in ("source", "unverified") or value is None or not isinstance(value, (int, float)):
                continue
            full = f"{name}.{key}"
            rows.append((full, _number_text(key, value), "unverified" if full in unverified else "yes", group.source))
    rows.sort(key=lambda row: row[2] == "yes")  # unverified numbers first, otherwise in the spec's order
    marked = [at for at, row in enumerate(rows) if row[2] != "yes"]
    words = (
        f"The model only uses the spec of {hardware.model}: {len(rows)} numbers, of which {len(marked)} are marked "
        "because they are not verified. A wrong number makes all predictions on this page wrong."
    )
    facts = Facts(
        [("numbers", str(len(rows)), f"spec {hardware.name!r}"), ("unverified", str(len(marked)), "marked below")]
    )
    return Section(
        "Where the numbers come from", [words], [facts, Table(_COLUMNS, rows, "Numbers of the device", 10, marked)]
    )


def _number_text(key: str, value: float) -> str:
    """Return a number with the unit at the end of its key, such as 1.4 GHz."""
    for ending, show in (
        ("_flop_per_s", units.flop_rate), ("bytes_per_s", units.rate), ("_hz", _clock), ("_bytes", units.size),
        ("_s", units.duration),
    ):  # fmt: skip
        if key.endswith(ending):
            return show(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _clock(hz: float) -> str:
    return f"{hz / 1e9:g} GHz"
