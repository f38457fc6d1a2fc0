"""What became of the models of others, as a table and as a page of the docs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["HEADINGS", "RIVALS", "Row", "page", "rows", "said"]

RIVALS = ("eager", "inductor", "onnxruntime")
HEADINGS = ("model", "routes", "compiled, CPU s", "error", "ours, us", "eager", "Inductor", "ONNX Runtime", "best")
_LEAST, _AIM = 0.8, 1.15
"""Of the fastest other engine's time over ours: of each model, and in the geometric mean."""

_PAGE = """# Models of others

<!-- Written by python -m bench.models_foreign --page, from bench/models_foreign.json. -->
Models of torchvision and transformers in small (the operators of the whole, few and narrow layers), and some written
by hand, compiled from PyTorch's module and from the ONNX file that PyTorch exports of it, without measurements, for one
thread. The error is the largest difference from PyTorch in float64, over the largest magnitude. Others' times are over
ours: above 1 anatune is faster. All engines take turns in one process, each called as its users do, from arrays to
arrays: medians of the process's CPU time. What was not timed yet has no times.

{told}

{table}
{refused}
Measured with {versions}; {processor}. Again, some 90 s a model on a quiet machine:

    python -m bench.models_foreign --times --json bench/models_foreign.json --page docs/reference/models.md
"""

Models = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Model -> route -> what became of it (`bench.models_foreign.tried`)."""


class Row(NamedTuple):
    """A model: what is right of it, and others' times over ours.

    Attributes
    ----------
    name : str
    routes : tuple of str
        By which it is right; of these the first that was timed counts, else the first.
    answer : mapping
        What became of it by that route; of a model that is not right by the first that was tried.
    """

    name: str
    routes: tuple[str, ...]
    answer: Mapping[str, Any]

    @property
    def ratios(self) -> dict[str, float]:
        """Times of other engines over ours, by their names."""
        times = self.answer.get("times_s") or {}
        return {who: times[who] / times["anatune"] for who in RIVALS if who in times}

    @property
    def best(self) -> float | None:
        """Time of the fastest other engine over ours."""
        return min(self.ratios.values(), default=None)

    def cells(self) -> list[str]:
        """Return the row of a table with `HEADINGS`."""
        times = self.answer.get("times_s")
        known = self.answer["state"] == "right"
        return [
            self.name,
            ", ".join(self.routes) or self.answer["state"],
            f"{self.answer['compile_s']:.0f}" if known else "",
            f"{self.answer['error']:.0e}" if known else "",
            f"{times['anatune'] * 1e6:,.0f}" if times else "",
            *(f"{self.ratios[who]:.2f}" if who in self.ratios else "" for who in RIVALS),
            f"{self.best:.2f}" if self.best else "",
        ]


def rows(models: Models) -> list[Row]:
    """Return a row for each model."""
    found = []
    for name, routes in sorted(models.items()):
        right = [route for route in routes if routes[route]["state"] == "right"]
        timed = [route for route in right if routes[route].get("times_s")]
        found.append(Row(name, tuple(right), routes[(timed or right or list(routes))[0]]))
    return found


def said(found: Sequence[Row]) -> list[str]:
    """Return what the rows come to, in sentences."""
    right = [row for row in found if row.routes]
    counts = Counter(route for row in found for route in row.routes)
    each = ", ".join(f"{count} from {'PyTorch' if route == 'module' else 'ONNX'}" for route, count in counts.items())
    told = [f"{len(right)} of {len(found)} models are right by one route at least ({each})."]
    best = {row.name: row.best for row in found if row.best}
    if best:
        mean = math.exp(sum(map(math.log, best.values())) / len(best))
        slow = [f"{name} {ratio:.2f}" for name, ratio in best.items() if ratio < _LEAST]
        told.append(
            f"The fastest other engine's time over ours, geometric mean of {len(best)}: {mean:.2f} (aim {_AIM}); "
            f"below {_LEAST}: {', '.join(slow) or 'none'}."
        )
    return told


def page(document: Mapping[str, Any]) -> str:
    """Return the page of the docs: a table of all models; `document` is what `bench.models_foreign` wrote."""
    found, environment = rows(document["models"]), document["environment"]
    table = [HEADINGS, ("---",) * len(HEADINGS), *(row.cells() for row in found)]
    refused = [
        f"- {name}, {route}: {answer.get('why', 'differs')}"
        for name, routes in sorted(document["models"].items())
        for route, answer in routes.items()
        if answer["state"] != "right"
    ]
    libraries = environment["versions"] | environment["libraries"]
    return _PAGE.format(
        told="\n".join(said(found)),
        table="\n".join(f"| {' | '.join(line)} |" for line in table),
        refused="\n".join(["", "What is not right:", "", *refused, ""] if refused else []),
        versions=", ".join(f"{name} {version}" for name, version in libraries.items()),
        processor=environment["processor"],
    )
