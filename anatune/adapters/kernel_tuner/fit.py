"""How much of somebody's kernel the model understands, and what it does not, in words."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from anatune.adapters.kernel_tuner.names import Config, Names, Value, Values, is_clblast
from anatune.adapters.kernel_tuner.scores import MISFIT, Scores
from anatune.arguments import shown
from anatune.errors import SpaceError

AUTO_SPREAD = "auto"
LEAST_SPREAD = 0.25
"""Share of a list that leaves the order alone, where a kernel's every parameter is understood: the order may be worth
nothing or one of the three correlations of `model.pruning.portfolio`, all four equally likely."""
_UNDERSTOOD = ("block", "threads", "work", "inner", "vector", "unroll")
"""Kinds of roles that the template has; fetch and staged are guesses."""
_FEW = 4
"""Parameters that a message lists."""


class _Reads(dict[str, Value]):
    """A configuration that remembers which parameters a function of it reads."""

    def __init__(self, values: Config) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Value:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Value = None) -> Value:
        self.read.add(name)
        return super().get(name, default)


class Fit:
    """What of a kernel the model understands.

    Attributes
    ----------
    trusted : bool
        The kernel is CLBlast's Xgemm, whose order is measured (README).
    understood : float
        In [0, 1]: the bits of a configuration that are in parameters with a role of the template, times the share of
        configurations that the model can judge.
    spread : float
        Share of the choice that leaves the order alone: 0 for a trusted kernel, from `LEAST_SPREAD` to 1 for others,
        or as asked.
    """

    def __init__(
        self,
        names: Names,
        parameters: Sequence[str],
        configs: Sequence[Values],
        scores: Scores,
        spread: float | str,
    ) -> None:
        self.trusted = is_clblast(names)
        bits = {
            name: math.log2(len({row[at] for row in configs})) if configs else 0.0 for at, name in enumerate(parameters)
        }
        meant = set(_meant(names, dict(zip(parameters, configs[0], strict=True)))) if configs else set()
        self.unknown = tuple(name for name in parameters if bits[name] > 0.0 and name not in meant)
        total = sum(bits.values())
        of_roles = 1.0 - sum(bits[name] for name in self.unknown) / total if total else 1.0
        runs = scores.runs
        flags = {
            "blocks that reach over an edge (counted whole)": scores.overhangs & runs,
            "values that do not fit the roles": scores.rule == MISFIT,
            "more resources than the model's own code could have": (scores.rule > 0) & runs,
        }
        self._shares = {what: float(flag.mean()) if len(flag) else 0.0 for what, flag in flags.items()}
        judged = float(scores.known[runs].mean()) if runs.any() else 0.0
        self.understood = of_roles * judged
        if spread == AUTO_SPREAD:
            self.spread = 0.0 if self.trusted else 1.0 - (1.0 - LEAST_SPREAD) * self.understood
        else:
            self.spread = float(spread)

    def __repr__(self) -> str:
        return f"Fit(understood {self.understood:.2f}, spread {self.spread:.2f}: {self.describe()})"

    def describe(self) -> str:
        """Return what is not understood, in one sentence."""
        if self.trusted:
            return "CLBlast's Xgemm, which the model was compared with"
        return "; ".join(
            ("the model describes kernels of its own template, this one is read by its names", *self._gaps())
        )

    def _gaps(self) -> Iterator[str]:
        if self.unknown:
            more = "" if len(self.unknown) <= _FEW else ", ..."
            yield f"no role of the template: {', '.join(self.unknown[:_FEW])}{more}"
        for what, share in self._shares.items():
            if share > 0.0:
                yield f"{what}: {share:.0%}" if share >= 0.01 else f"{what}: under 1%"

    def warn(self, kept: int, count: int) -> None:
        """Warn, once in a program for each such kernel, that part of the list leaves the order alone."""
        if self.spread > 0.0:
            warnings.warn(
                f"anatune keeps {kept} of {count} configurations, {self.spread:.0%} of the choice spread over all of "
                f"them whatever it predicts: {self.describe()} (spread=0: the predicted order alone; "
                "PrunedSpace.explain says more)",
                UserWarning,
                stacklevel=4,
            )


def checked_spread(spread: float | str) -> float | str:
    """Return `spread`, or refuse it.

    Raises
    ------
    SpaceError
        It is neither "auto" nor a number from 0 to 1.
    """
    number = isinstance(spread, int | float | np.integer | np.floating) and not isinstance(spread, bool)
    if spread != AUTO_SPREAD and not (number and 0.0 <= float(spread) <= 1.0):
        raise SpaceError(
            f"spread is {shown(spread)}, expected 'auto' or a share from 0 (the predicted order alone) to 1"
        )
    return spread


def _meant(names: Names, config: Config) -> Iterator[str]:
    """Yield the parameters that have a role which the template knows."""
    for role, source in names.items():
        if role.partition("_")[0] not in _UNDERSTOOD:
            continue
        if isinstance(source, str):
            yield source
        elif callable(source):
            seen = _Reads(config)
            source(seen)
            yield from seen.read
