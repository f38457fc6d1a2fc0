"""An estimate of how much of a caller's kernel the model understands, and a text about the rest."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from anatune.adapters.kernel_tuner.names import Config, Names, Value, Values, is_clblast
from anatune.adapters.kernel_tuner.scores import MISFIT, Scores
from anatune.arguments import quote
from anatune.errors import SpaceError

AUTO_SPREAD = "auto"
LEAST_SPREAD = 0.25
"""The share of a selection that is spread over the space although every parameter of the kernel is understood. Source:
the order may be worth nothing, or have one of the correlations of `portfolio.choose_portfolio`, equally likely."""
_UNDERSTOOD = ("block", "threads", "work", "inner", "vector", "unroll")
"""The kinds of roles that the template has; fetch and staged are guesses."""
_FEW = 4
"""The number of parameters that a message lists."""


class _Reads(dict[str, Value]):
    """A configuration that remembers which of its parameters a function reads."""

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
    """The share of a kernel that the model understands.

    Attributes
    ----------
    trusted : bool
        Whether the kernel is CLBlast's Xgemm, for which predictions were compared with measurements (README).
    understood : float
        A share in [0, 1]: the share of a configuration's bits that are in parameters with a role of the template, times
        the share of configurations that the model can judge.
    spread : float
        The share of the selection that is spread over the whole space: 0 for a trusted kernel, from `LEAST_SPREAD` to 1
        for others, or the caller's value.
    """

    def __init__(
        self, names: Names, parameters: Sequence[str], configs: Sequence[Values], scores: Scores, spread: float | str
    ) -> None:
        self.trusted = is_clblast(names)
        bits = {
            name: math.log2(len({row[at] for row in configs})) if configs else 0.0 for at, name in enumerate(parameters)
        }
        meant = set(_parameters_with_role(names, dict(zip(parameters, configs[0], strict=True)))) if configs else set()
        self.unknown = tuple(name for name in parameters if bits[name] > 0.0 and name not in meant)
        total = sum(bits.values())
        share_with_role = 1.0 - sum(bits[name] for name in self.unknown) / total if total else 1.0
        runs = scores.runs
        flags = {
            "blocks reach over the end of an axis and are predicted as whole blocks": scores.overhangs & runs,
            "values contradict each other": scores.rule == MISFIT,
            "anatune's own kernel with this tile would not fit the device": (scores.rule > 0) & runs,
        }
        self._shares = {what: float(flag.mean()) if len(flag) else 0.0 for what, flag in flags.items()}
        judged = float(scores.judged[runs].mean()) if runs.any() else 0.0
        self.understood = share_with_role * judged
        if spread == AUTO_SPREAD:
            self.spread = 0.0 if self.trusted else 1.0 - (1.0 - LEAST_SPREAD) * self.understood
        else:
            self.spread = float(spread)

    def __repr__(self) -> str:
        return f"Fit(understood {self.understood:.2f}, spread {self.spread:.2f}: {self.describe()})"

    def describe(self) -> str:
        """Return a sentence about what the model does not understand."""
        if self.trusted:
            return "CLBlast's Xgemm, for which predictions were compared with measurements"
        return "; ".join(("the model describes anatune's own kernels and treats yours as one of them", *self._gaps()))

    def _gaps(self) -> Iterator[str]:
        if self.unknown:
            more = "" if len(self.unknown) <= _FEW else ", ..."
            yield f"parameters whose meaning is not known: {', '.join(self.unknown[:_FEW])}{more}"
        for what, share in self._shares.items():
            if share > 0.0:
                yield f"{what}: {share:.0%}" if share >= 0.01 else f"{what}: under 1%"

    def warn(self, kept: int, count: int) -> None:
        """Warn that a part of the selection does not follow the predicted order; Python shows it once for a kernel."""
        if self.spread > 0.0:
            warnings.warn(
                f"anatune keeps {kept} of {count} configurations, {self.spread:.0%} of them spread over the space "
                f"instead of following predictions: {self.describe()} (spread=0 keeps the best predicted ones; "
                "PrunedSpace.explain says more)",
                UserWarning,
                stacklevel=4,
            )


def check_spread(spread: float | str) -> float | str:
    """Return `spread` if it is valid.

    Raises
    ------
    SpaceError
        `spread` is neither "auto" nor a number from 0 to 1.
    """
    number = isinstance(spread, int | float | np.integer | np.floating) and not isinstance(spread, bool)
    if spread != AUTO_SPREAD and not (number and 0.0 <= float(spread) <= 1.0):
        raise SpaceError(f"spread is {quote(spread)}, expected 'auto' or a number from 0 (predicted order alone) to 1")
    return spread


def _parameters_with_role(names: Names, config: Config) -> Iterator[str]:
    """Yield the parameters that have a role in the template."""
    for role, source in names.items():
        if role.partition("_")[0] not in _UNDERSTOOD:
            continue
        if isinstance(source, str):
            yield source
        elif callable(source):
            seen = _Reads(config)
            source(seen)
            yield from seen.read
