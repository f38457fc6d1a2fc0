"""Find the cheapest of several options for each node of a graph, with the cost of transposes, as a 0/1 program.

A variable says that option k of node n is chosen, or that value v, written in order a, is also available in order b. A
value is transposed at most once for all its readers. HiGHS (`scipy.optimize.milp`) bounds the distance to the optimum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anatune.core.workload.orders import Order
from anatune.errors import BuildError
from anatune.network.graph.nodes import Value

__all__ = ["Assignment", "LayoutOption", "LayoutProblem"]

_SCALE = 1e6
"""Costs are in microseconds for the solver, because its tolerances are absolute."""
_TIME_LIMIT_S = 10.0

TransposeTime = Callable[[Value, Order, Order], float]
"""A function from (value, order it is written in, another order) to seconds."""


class LayoutOption(NamedTuple):
    """One way to compute a node.

    Attributes
    ----------
    cost_s : float
    written : Order
        Order of the result.
    reads : tuple of (Value, Order)
        Values that it reads, and the order of each.
    """

    cost_s: float
    written: Order
    reads: tuple[tuple[Value, Order], ...] = ()


class Assignment(NamedTuple):
    """A solution of a `LayoutProblem`.

    Attributes
    ----------
    picked : dict of Value to int
        Node -> index of its option.
    cost_s, bound_s : float
        Cost of options and transposes, and a lower bound of any assignment's cost.
    """

    picked: dict[Value, int]
    cost_s: float
    bound_s: float


class LayoutProblem(NamedTuple):
    """The options of all nodes, and their costs.

    Attributes
    ----------
    options : mapping of Value to sequence of LayoutOption
        Options by node, which is the value that it computes.
    needed : collection of (Value, Order)
        Values that are needed at the end, such as outputs.
    transpose_s : callable
    default : Order
        Order of values that no node computes.
    """

    options: Mapping[Value, Sequence[LayoutOption]]
    needed: Collection[tuple[Value, Order]]
    transpose_s: TransposeTime
    default: Order

    def cost_of(self, picked: Mapping[Value, int]) -> tuple[float, list[tuple[Value, Order, Order]]]:
        """Return the cost of chosen options with all transposes, and these transposes as (value, from, to)."""
        chosen = {node: self.options[node][place] for node, place in picked.items()}
        reads = dict.fromkeys([*(read for option in chosen.values() for read in option.reads), *self.needed])
        written = {value: chosen[value].written if value in chosen else self.default for value, _ in reads}
        turned = [(value, written[value], order) for value, order in reads if written[value] != order]
        costs_s = sum(option.cost_s for option in chosen.values())
        return costs_s + sum(self.transpose_s(*one) for one in turned), turned

    def solve(self) -> Assignment:
        """Return the cheapest assignment.

        Raises
        ------
        BuildError
            The solver failed.
        """
        program = _LayoutProgram(self)
        if not program.costs:
            return Assignment({}, 0.0, 0.0)
        shares, bound = program.solve()
        picked = {
            node: max(range(len(own)), key=lambda place: shares[program.takes[node, place]])
            for node, own in self.options.items()
        }
        cost_s, _ = self.cost_of(picked)
        return Assignment(picked, cost_s, min(cost_s, bound))


class _LayoutProgram:
    """The 0/1 program of a layout problem.

    Attributes
    ----------
    costs : list of float
        Cost of each variable, s.
    takes : dict of (Value, int) to int
        (Node, index of its option) -> variable that says whether it is chosen.
    rows : list of (dict, float, float)
        Constraints: coefficients of a sum by variable, and its least and largest value.
    """

    def __init__(self, problem: LayoutProblem) -> None:
        self._problem = problem
        self.costs: list[float] = []
        self.takes: dict[tuple[Value, int], int] = {}
        self.rows: list[tuple[dict[int, float], float, float]] = []
        self._writes: dict[tuple[Value, Order], list[int]] = defaultdict(list)
        self._transposes: dict[tuple[Value, Order], list[int]] = defaultdict(list)
        readers = self._add_options()
        self._add_transposes((*readers, *problem.needed))
        for node, options in problem.options.items():
            self.rows.append(({self.takes[node, place]: 1.0 for place in range(len(options))}, 1.0, 1.0))
        for read, by_node in readers.items():
            makers, available = self._availability(*read)
            for asking in by_node.values():
                self.rows.append(({**makers, **dict.fromkeys(asking, 1.0)}, -np.inf, available))
        for read in problem.needed:
            makers, available = self._availability(*read)
            self.rows.append((makers, -np.inf, available - 1.0))

    def _add_options(self) -> Mapping[tuple[Value, Order], Mapping[Value, list[int]]]:
        """Add a variable for each option; return the variables that read a value in an order, by node."""
        readers: dict[tuple[Value, Order], dict[Value, list[int]]] = defaultdict(lambda: defaultdict(list))
        for node, options in self._problem.options.items():
            for number, option in enumerate(options):
                self.takes[node, number] = len(self.costs)
                self._writes[node, option.written].append(len(self.costs))
                for read in dict.fromkeys(option.reads):
                    readers[read][node].append(len(self.costs))
                self.costs.append(option.cost_s)
        return readers

    def _add_transposes(self, reads: Iterable[tuple[Value, Order]]) -> None:
        """Add a variable for each transpose of a value to an order that is read."""
        origins: dict[Value, list[Order]] = defaultdict(list)
        for value, order in self._writes:
            origins[value].append(order)
        for value, order in dict.fromkeys(reads):
            for origin in origins.get(value, [self._problem.default]):
                if origin == order:
                    continue
                self._transposes[value, order].append(len(self.costs))
                if value in self._problem.options:  # only an order that is written can be transposed
                    written = dict.fromkeys(self._writes[value, origin], -1.0)
                    self.rows.append(({len(self.costs): 1.0, **written}, -np.inf, 0.0))
                self.costs.append(self._problem.transpose_s(value, origin, order))

    def _availability(self, value: Value, order: Order) -> tuple[dict[int, float], float]:
        """Return the variables that make a value available in an order, and 1.0 if it is available without them."""
        makers = dict.fromkeys((*self._writes.get((value, order), ()), *self._transposes.get((value, order), ())), -1.0)
        is_given = value not in self._problem.options and order == self._problem.default
        return makers, 1.0 if is_given else 0.0

    def solve(self) -> tuple[Sequence[float], float]:
        """Return the values of the variables, and a lower bound of the cost of any assignment, s.

        Raises
        ------
        BuildError
            The solver failed.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        entries = [(row, at, value) for row, (terms, _, _) in enumerate(self.rows) for at, value in terms.items()]
        row_numbers, columns, values = zip(*entries, strict=True)
        matrix = csr_array((values, (row_numbers, columns)), shape=(len(self.rows), len(self.costs)))
        answer = milp(
            np.array(self.costs) * _SCALE,
            integrality=np.ones(len(self.costs)),
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(matrix, [row[1] for row in self.rows], [row[2] for row in self.rows]),
            options={"mip_rel_gap": 0.0, "time_limit": _TIME_LIMIT_S},
        )
        if answer.x is None:
            raise BuildError(f"the solver found no layouts for the model: {answer.message!s:.200}; report it")
        return answer.x, float(answer.mip_dual_bound) / _SCALE
