"""Cases of a test that cannot fail apart: one test goes through all of them and says at which one it failed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for every case, as ``pytest.mark.parametrize`` would, but as one test.

    Fixtures are made once and shared by the cases.
    """
    keys = [name.strip() for name in names.split(",")]
    rows = [tuple(case) if len(keys) > 1 else (case,) for case in cases]

    def wrap(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for row in rows:
                try:
                    test(**fixtures, **dict(zip(keys, row, strict=True)))
                except Exception as error:
                    raise AssertionError(f"{names} = {', '.join(map(str, row))}: {error}") from error

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return wrap
