"""The numbers of a device on a page: what each is, where it comes from, and whether anybody has verified it."""

from __future__ import annotations

import msgspec

from anatune.core.hardware.groups import Group
from anatune.core.hardware.spec import HardwareSpec
from anatune.pages.page import Column, Facts, Section, Table
from anatune.report import units
from anatune.report.devices import unverified_keys

_COLUMNS = (
    Column("number", True, "its key in the device's spec file; the unit ends the name"),
    Column("value", True),
    Column("verified", True, "whether somebody has checked it"),
    Column("source", True),
)


def device_section(hardware: HardwareSpec) -> Section:
    """Return every number of a device's spec with its source; those that nobody has verified are marked."""
    doubtful = set(unverified_keys(hardware))
    rows: list[tuple[str, str, str, str]] = []
    for name in hardware.__struct_fields__:
        group = getattr(hardware, name)
        if not isinstance(group, Group):
            continue
        for key, value in msgspec.structs.asdict(group).items():
            if key in ("source", "unverified") or value is None or not isinstance(value, (int, float)):
                continue
            full = f"{name}.{key}"
            rows.append((full, _shown(key, value), "unverified" if full in doubtful else "yes", group.source))
    rows.sort(key=lambda row: row[2] == "yes")  # doubtful ones first, the others in the spec's order
    marked = [at for at, row in enumerate(rows) if row[2] != "yes"]
    words = (
        f"What the model knows of {hardware.model} is what its spec says: {len(rows)} numbers, of which "
        f"{len(marked)} are "
        "marked because nobody has verified them. A wrong number here makes wrong predictions everywhere on this page."
    )
    facts = Facts(
        [("numbers", str(len(rows)), f"spec {hardware.name!r}"), ("unverified", str(len(marked)), "marked below")]
    )
    return Section(
        "Where the numbers come from", [words], [facts, Table(_COLUMNS, rows, "Numbers of the device", 10, marked)]
    )


def _shown(key: str, value: float) -> str:
    """Return a number as people read it: by the unit that ends its key."""
    for ending, show in (
        ("_flop_per_s", units.flop_rate), ("bytes_per_s", units.rate), ("_hz", _clock), ("_bytes", units.size),
        ("_s", units.duration),
    ):  # fmt: skip
        if key.endswith(ending):
            return show(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _clock(hz: float) -> str:
    return f"{hz / 1e9:g} GHz"
