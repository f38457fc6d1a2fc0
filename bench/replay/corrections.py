"""Which correction scores which recorded group, honestly: what `models.train_corrections` and `ranking` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.model.learned.corrections import Card, find_shipped_correction, read_shipped_cards
from anatune.model.learned.cross_fit import MeasuredPoints, cross_fit
from anatune.templates.base.features import FeatureTable
from bench.replay.recorded import RecordedGroup

__all__ = ["KERNELS", "MODELS", "corrected_times", "measured_of"]

Floats = NDArray[np.float64]

KERNELS = {
    "ansor": "ansor", "autotvm": "autotvm", "clblast": "clblast", "tophub": "autotvm",
    "ansor_x86": "ansor_cpu", "autotvm_nchwc": "autotvm_cpu",
}  # fmt: skip
"""Kind of a recorded group -> `Card.kernels` of the corrections that describe it."""

MODELS = ("plain", "corrected", "lowo", "lodo")
"""What can be scored. plain: the analytical model. corrected: what a user gets, the shipped corrections; a group that
one was trained on is scored by a model like it that has not seen the workload (CLBlast: the device). lowo, lodo: fitted
on the other workloads of the same kernels and device; on the other devices of the same kind of kernels."""


def measured_of(group: RecordedGroup, table: FeatureTable | None = None) -> MeasuredPoints:
    """Return what a correction learns from a group."""
    return MeasuredPoints(group.workload_id, group.device, table or group.features(), group.time_s)


def corrected_times(groups: Sequence[RecordedGroup], model: str, progress: Callable[[], None]) -> list[Floats | None]:
    """Return the corrected seconds of each group's points; None where the analytical model is used as it is.

    Parameters
    ----------
    groups
        All recorded groups, also those that are only trained on.
    model : {"corrected", "lowo", "lodo"}
        See `MODELS`.
    progress
        Called after each family of groups.
    """
    found: list[Floats | None] = [None] * len(groups)
    families: dict[tuple[str, ...], list[int]] = {}
    for at, group in enumerate(groups):
        kernels = KERNELS[group.kind]
        if group.kind == "tophub" or (
            model == "corrected" and find_shipped_correction(group.hardware, kernels) is None
        ):
            continue
        key = (kernels,) if model == "lodo" or (model == "corrected" and _holdout(group) == "device") else ()
        families.setdefault(key or (kernels, group.device), []).append(at)
    for key, members in families.items():
        some = [measured_of(groups[at]) for at in members]
        if model == "corrected":
            times = _shipped_times([groups[at] for at in members], some, "device" if len(key) == 1 else "workload")
        else:
            times = cross_fit(some, "device" if model == "lodo" else "workload")
        for at, one in zip(members, times, strict=True):
            found[at] = one
        progress()
    return found


def _card(group: RecordedGroup) -> Card | None:
    """Return the card of the shipped correction that is used for a group."""
    kernels = KERNELS[group.kind]
    cards = [card for card in read_shipped_cards().values() if card.applies(group.hardware, kernels)]
    cards.sort(key=lambda card: group.hardware.name not in card.devices)
    return cards[0] if cards else None


def _holdout(group: RecordedGroup) -> str:
    """Return what is left out when a group was trained on."""
    card = _card(group)
    return "device" if card is not None and card.vendors else "workload"


def _is_seen(group: RecordedGroup, card: Card) -> bool:
    """Return whether a correction was trained on the group's workload and device."""
    return any(group.device in source.devices and group.workload_id in source.workloads for source in card.data)


def _shipped_times(groups: Sequence[RecordedGroup], measured: Sequence[MeasuredPoints], by: str) -> list[Floats | None]:
    """Return what the shipped correction says; of seen groups, what its like says that has not seen them."""
    cards = [_card(group) for group in groups]
    seen = [card is not None and _is_seen(group, card) for group, card in zip(groups, cards, strict=True)]
    crossed = cross_fit([one for one, known in zip(measured, seen, strict=True) if known], by) if any(seen) else []
    left = iter(crossed)
    found: list[Floats | None] = []
    for group, one, known in zip(groups, measured, seen, strict=True):
        if known:
            found.append(next(left))
            continue
        saved = find_shipped_correction(group.hardware, KERNELS[group.kind])
        ratio = saved.model.predict(one.table.values).log_ratio if saved else 0.0
        found.append(one.table.time_s * np.exp(ratio))
    return found
