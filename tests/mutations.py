"""Damaged values: what an adversary, a truncated file or another program's bug makes of JSON and of arguments."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

EXTREMES: list[Any] = [
    *(0, 1, -1, 2, 3, 7, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**31), 10**30),
    *(
        0.0,
        0.5,
        -1.5,
        1e308,
        True,
        False,
        None,
        "",
        "x",
        "i",
        "A",
        "T",
        "../x",
        "naïve\n",
        "3",
        "float64",
        "cpu",
        "bias",
    ),
    *([], {}, [[]], [0], [1, 1, 1, 1, 1], ["i", "j"], {"i": [1]}, {"": 0}, [None], [True, 1]),
]


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a tree of JSON."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutant(tree: Any, rng: random.Random, others: tuple[Any, ...] = ()) -> Any:
    """Return a copy of a tree with one to three places damaged; `others` lend it values of theirs."""
    result = copy.deepcopy(tree)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        known = list(places(result))
        if not known:
            return result
        path = _chosen(known, rng)
        owner = _at(result, path[:-1])
        _damage(owner, path[-1], rng, result, others)
    return result


def _chosen(known: list[tuple[Any, ...]], rng: random.Random) -> tuple[Any, ...]:
    """Return a place; one field of the outermost object first, so that long ones do not draw all damage."""
    first = rng.choice(sorted({path[0] for path in known}, key=str))
    return rng.choice([path for path in known if path[0] == first])


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _damage(owner: Any, key: Any, rng: random.Random, whole: Any, others: tuple[Any, ...]) -> None:
    kind = rng.choice(["drop", "extreme", "extreme", "near", "swap", "duplicate", "nest", "rename", "lend"])
    if kind == "drop":
        del owner[key]
    elif kind == "near" and isinstance(owner[key], int):
        owner[key] = owner[key] + rng.choice([-1, 1, owner[key]])
    elif kind == "swap":
        other = rng.choice(list(places(whole)))
        there = _at(whole, other[:-1])
        owner[key], there[other[-1]] = copy.deepcopy(there[other[-1]]), copy.deepcopy(owner[key])
    elif kind == "duplicate" and isinstance(owner, list):
        owner.insert(key, copy.deepcopy(owner[key]))
    elif kind == "nest":
        owner[key] = [owner[key]] if rng.random() < 0.5 else {"x": owner[key]}
    elif kind == "rename" and isinstance(owner, dict):
        owner[str(rng.choice(EXTREMES))] = owner.pop(key)
    elif kind == "lend" and others:
        other = rng.choice(others)
        owner[key] = copy.deepcopy(_at(other, rng.choice(list(places(other)))))
    else:
        owner[key] = copy.deepcopy(rng.choice(EXTREMES))
