"""Surfaces for [Droplet24] Sec. 4.4: equations over grids of tile sizes, and what models say of six kernels.

Notation
--------
h, w : height and width of a tile; C, L, n : elements of the cache, of a line of it, and of a side of the array.
Ti0, Ti1, Tk0 : tiles of a matmul's rows for the first and the second cache, and of its reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

import anatune
from anatune import api
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.text import parse_workload
from anatune.templates.base.model import Evaluation, Guarantee, Model, Progress, Ranking, Rule
from anatune.templates.base.space import Space
from anatune.templates.gpu.io_bound import gpu_io_bounds
from bench.replay.recorded import model_of

__all__ = ["GridModel", "Quantity", "Surface", "equation_surfaces", "kernel_surfaces"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]


class _GridSpace(Space):
    """A product of lists of numbers that belong to no kernel."""

    template = "cpu"

    def __init__(self, choices: Mapping[str, Sequence[int]]) -> None:
        # A schedule needs a workload and a device; nothing of these two enters a cost.
        super().__init__(anatune.matmul(1, 1, 1), api.hardware("ryzen_3700x"), self._are_legal)
        self.axes, self.levels, self.extents = (), {}, {}
        self.choices = {name: tuple(sorted(values)) for name, values in choices.items()}
        self.check: Callable[[Integers], Integers] | None = None

    def _are_legal(self, points: Integers) -> NDArray[np.bool_]:
        return np.ones(len(points), dtype=np.bool_) if self.check is None else self.check(points) == 0

    def schedule_of(self, point: Sequence[int] | Integers) -> Schedule:
        """Decode one point: its numbers are options of the schedule."""
        options = dict(zip(self.columns, self._values(point), strict=True))
        return Schedule(self.workload, self.hardware, self.template, {}, options=options)

    def schedule(self, tiles: Mapping[str, Sequence[int]]) -> Schedule:
        """Return the schedule with these numbers."""
        return self.schedule_of([int(tiles[name][0]) for name in self.columns])

    def point_of(self, schedule: Schedule) -> Integers:
        """Return the numbers of a schedule."""
        return np.array([schedule.options[name] for name in self.columns], dtype=np.int64)


class GridModel(Model):
    """An equation over a grid, as a model.

    Parameters
    ----------
    choices : mapping of str to sequence of int
        Name -> values of each parameter.
    cost : callable
        Columns of the points, (num_points,) float64 each -> costs > 0, (num_points,) float64.
    fits : callable, optional
        Columns -> which points are legal; by default all.
    """

    def __init__(
        self,
        choices: Mapping[str, Sequence[int]],
        cost: Callable[[Columns], Floats],
        fits: Callable[[Columns], NDArray[np.bool_]] | None = None,
    ) -> None:
        self.space = _GridSpace(choices)
        self.workload, self.hardware = self.space.workload, self.space.hardware
        self.rules = (Rule("fits", "the tile fits the cache", 1.0),)
        self._cost, self._fits = cost, fits
        self.space.check = self.check

    def _columns(self, points: Integers) -> Columns:
        columns = np.atleast_2d(points).T.astype(np.float64)
        return dict(zip(self.space.columns, columns, strict=True))

    def check(self, points: Integers) -> Integers:
        """Return 0 where a point is legal, else 1."""
        if self._fits is None:
            return np.zeros(len(np.atleast_2d(points)), dtype=np.int64)
        return (~self._fits(self._columns(points))).astype(np.int64)

    def times(self, points: Integers) -> tuple[Floats, Integers]:
        """Return (costs, `check`)."""
        return np.asarray(self._cost(self._columns(points)), dtype=np.float64), self.check(points)

    def evaluate(self, points: Integers) -> Evaluation:
        """Return costs; there are no other quantities."""
        return Evaluation(*self.times(points), {})

    def predictions(self, points: Integers) -> NoReturn:
        """Raise: an equation has no parts to show."""
        raise NotImplementedError("a surface of an equation has no predictions")

    def rank(
        self, top_k: int, time_limit_s: float | None = None, *, distinct: bool = False, progress: Progress | None = None
    ) -> Ranking:
        """Return the `top_k` points of smallest cost: all are looked at."""
        points = self.space.points_at(np.arange(self.space.size))
        costs, rules = self.times(points)
        order = np.argsort(np.where(rules == 0, costs, np.inf), kind="stable")[:top_k]
        num_legal = int((rules == 0).sum())
        guarantee = Guarantee("exhaustive", 0.0, self.space.size, 0)
        return Ranking(points[order[:num_legal]], guarantee, num_legal, {"fits": self.space.size - num_legal})


class Quantity(Model):
    """A quantity that a model computes of its points, in the place of the time.

    Parameters
    ----------
    model
        The model.
    column : str
        A column of its `evaluate`; its values are > 0.
    """

    def __init__(self, model: Model, column: str) -> None:
        self.model, self.column = model, column
        self.space, self.workload, self.hardware, self.rules = model.space, model.workload, model.hardware, model.rules

    def check(self, points: Integers) -> Integers:
        """Return the model's rule codes."""
        return self.model.check(points)

    def times(self, points: Integers) -> tuple[Floats, Integers]:
        """Return (the quantity, rule codes)."""
        found = self.model.evaluate(points)
        return found.columns[self.column], found.rule

    def evaluate(self, points: Integers) -> Evaluation:
        """Return what the model says, the quantity for the time."""
        found = self.model.evaluate(points)
        return Evaluation(found.columns[self.column], found.rule, found.columns)

    def predictions(self, points: Integers) -> list[anatune.Prediction]:
        """Return the model's predictions."""
        return self.model.predictions(points)

    def rank(self, top_k: int, time_limit_s: float | None = None, **_: object) -> NoReturn:
        """Raise: models rank by time."""
        raise NotImplementedError("only times are ranked")

    def program_key(self, point: Integers) -> object:
        """Return the model's."""
        return self.model.program_key(point)


@dataclass(frozen=True)
class Surface:
    """Something to search."""

    name: str
    group: str
    words: str
    """What it is."""
    model: Model
    best: float
    """Smallest cost of a legal point."""
    truth: str
    """How the smallest cost is known: "all points", "certified", "a bound"."""


GROUPS = ("tile size models", "I/O of a matmul", "remainders", "predicted time", "predicted traffic")
N, FIRST, SECOND = 10_000, 16_384, 65_536
"""Side of the matrices ([Droplet24] Fig. 13), and elements (4 bytes) of caches of 64 and 256 KiB (Sec. 4.4.1)."""


def equation_surfaces() -> list[Surface]:
    """Return the surfaces that are equations, with the smallest cost of all their points."""
    return [*_tile_size_models(), *_matmul_io(), *_remainders()]


def _surface(name: str, group: str, words: str, model: GridModel) -> Surface:
    points = model.rank(1).points
    return Surface(name, group, words, model, float(model.times(points)[0][0]), "all points")


def _tile_size_models() -> list[Surface]:
    """Return the eight models that [Droplet24] Fig. 15 prints, on its grid.

    The text's precedence is open in two (TSS, WMC) and a digit may be a letter in a third (MHCF): both readings are
    there. TLI as printed has a negative coefficient; it is shifted to be positive, which moves no minimum.
    """
    cache = line = 32.0
    side = 100.0
    texts: dict[str, tuple[str, Callable[[Floats, Floats], Floats]]] = {
        "ESS": ("C / (h w)", lambda h, w: cache / (h * w)),
        "LRW": ("1/h + 1/w + (2h + w) / C", lambda h, w: 1 / h + 1 / w + (2 * h + w) / cache),
        "TSS": ("(2h + w) / (h w)", lambda h, w: (2 * h + w) / (h * w)),
        "TSS, other reading": ("(2h + w) / h * w", lambda h, w: (2 * h + w) / h * w),
        "EUC": ("1/h + 1/w", lambda h, w: 1 / h + 1 / w),
        "MOON": ("1/h + 1/w + (h + w) / C", lambda h, w: 1 / h + 1 / w + (h + w) / cache),
        "TLI": (
            "1/h + 1/w + (h - w) / C + h w / C^2 + 3",
            lambda h, w: 1 / h + 1 / w + (h - w) / cache + h * w / cache**2 + 3.0,
        ),
        "WMC": ("C / (h w)", lambda h, w: cache / (h * w)),
        "WMC, other reading": ("C / h * w", lambda h, w: cache / h * w),
        "MHCF": (
            "(1/h + 1/2) (1/n + 1/L) + 2 / (h w)",
            lambda h, w: (1 / h + 1 / 2) * (1 / side + 1 / line) + 2 / (h * w),
        ),
        "MHCF, other reading": (
            "(1/h + 1/w) (1/n + 1/L) + 2 / (h w)",
            lambda h, w: (1 / h + 1 / w) * (1 / side + 1 / line) + 2 / (h * w),
        ),
    }
    grid = {"h": range(1, 100, 5), "w": range(1, 100, 5)}
    return [
        _surface(name, GROUPS[0], words, GridModel(grid, lambda c, cost=cost: cost(c["h"], c["w"])))
        for name, (words, cost) in texts.items()
    ]


def _matmul_io() -> list[Surface]:
    """Return what a tiled matmul of [Droplet24] Fig. 13's size moves, which the paper does not print.

    A tile Ti x Tk of the first operand stays in the cache while the others stream past: N^3 (1/Ti + 1/Tk) elements.
    Where the tile is a square that fills the cache this is the lower bound of `anatune.templates.gpu.io_bound`.
    """
    divisors = [value for value in range(1, N + 1) if N % value == 0]
    cube = float(N) ** 3

    def fits(i: Floats, k: Floats, capacity: int) -> NDArray[np.bool_]:
        return i * k + i + k <= capacity

    def one(c: Columns) -> Floats:
        return cube / c["Ti0"] + cube / c["Tk0"]

    def whole(c: Columns) -> Floats:
        return float(N) ** 2 * (np.ceil(N / c["Ti0"]) + np.ceil(N / c["Tk0"]))

    def two(c: Columns) -> Floats:
        return cube / c["Ti0"] + cube / c["Ti1"] + 2.0 * cube / c["Tk0"]

    def one_fits(c: Columns) -> NDArray[np.bool_]:
        return fits(c["Ti0"], c["Tk0"], FIRST)

    def two_fit(c: Columns) -> NDArray[np.bool_]:
        return one_fits(c) & fits(c["Ti1"], c["Tk0"], SECOND) & (c["Ti0"] <= c["Ti1"])

    sizes = range(4, 321, 4)
    return [
        _surface("one cache", GROUPS[1], "divisors", GridModel(dict.fromkeys(("Ti0", "Tk0"), divisors), one, one_fits)),
        _surface(
            "one cache, any size",
            GROUPS[1],
            "sizes 4 to 320 in steps of 4, whole tiles counted",
            GridModel(dict.fromkeys(("Ti0", "Tk0"), sizes), whole, one_fits),
        ),
        _surface(
            "two caches", GROUPS[1], "divisors", GridModel(dict.fromkeys(("Ti0", "Ti1", "Tk0"), divisors), two, two_fit)
        ),
    ]


def _remainders() -> list[Surface]:
    """Return an equation with a conditional, in the manner of [Droplet24] Sec. 4.4.2, whose coefficients it keeps.

    ReLU of H x W = 120 x 126 in tiles h x w that a local memory of 1024 elements holds: each tile starts a transfer and
    moves its elements, and code for the remainder runs where a tile does not divide a side.
    """
    high, wide, memory, start, epilogue = 120, 126, 1024, 64.0, 2048.0

    def cost(c: Columns) -> Floats:
        tiles = np.ceil(high / c["h"]) * np.ceil(wide / c["w"])
        rest = (high % c["h"] != 0).astype(np.float64) + (wide % c["w"] != 0)
        return tiles * (start + c["h"] * c["w"]) + epilogue * rest

    def fits(c: Columns) -> NDArray[np.bool_]:
        return c["h"] * c["w"] <= memory

    def dividing(extent: int) -> list[int]:
        return [value for value in range(1, extent + 1) if extent % value == 0]

    return [
        _surface(
            "any tile", GROUPS[2], "tiles of 1 to 64", GridModel(dict.fromkeys(("h", "w"), range(1, 65)), cost, fits)
        ),
        _surface(
            "divisors",
            GROUPS[2],
            "tiles that divide",
            GridModel({"h": dividing(high), "w": dividing(wide)}, cost, fits),
        ),
    ]


KERNELS: dict[str, str] = {
    "matmul": "matmul 1024x1024x1024",
    "conv2d": "conv2d 1x64x56x56 64x64x3x3 --padding 1",
    "depthwise": "depthwise_conv2d 1x64x56x56 64x1x3x3 --padding 1",
    "pooling": "max_pool2d 1x64x56x56 3x3 --stride 2",
    "reduction": "sum 1024x4096 --axes 1",
    "relu": "relu 1024x1024",
}
"""The six kernels of [Droplet24] Sec. 4.6; it does not give their sizes, these are ours."""
_TIED = 64
"""First points of a ranking that are looked at for the smallest time: it takes times within 0.1 % as equal."""


def kernel_surfaces(devices: Sequence[str], kernels: Sequence[str] = tuple(KERNELS)) -> Iterator[Surface]:
    """Yield the predicted time of each kernel on each device, and the traffic of the two with operands to reuse."""
    for device in devices:
        hardware = api.hardware(device)
        for kernel in kernels:
            workload = parse_workload(KERNELS[kernel])
            model = model_of(workload, hardware)
            name = f"{kernel}, {device}"
            best = float(model.times(model.rank(_TIED).points)[0].min())
            yield Surface(name, GROUPS[3], KERNELS[kernel], model, best, "certified")
            if kernel in ("matmul", "conv2d"):
                yield _traffic(name, KERNELS[kernel], model)


def _traffic(name: str, words: str, model: Model) -> Surface:
    """Return the traffic into the SMs of a GPU or the first cache of a CPU, whose lower bound is known."""
    if isinstance(model.hardware, GpuSpec):
        column, bound = "l2_bytes", gpu_io_bounds(model.workload, model.hardware, 1)["l2"]
    else:
        column, bound = "l1_over_bound", 1.0
    return Surface(f"{name}, {column}", GROUPS[4], words, Quantity(model, column), bound, "a bound")
