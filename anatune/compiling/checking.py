"""Compiled outputs beside the original's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anatune.codegen.relax.frontends import Imported
from anatune.compiling.compiled import CompiledModel
from anatune.compiling.faults import error_of, tolerance_of
from anatune.compiling.memory import give_back
from anatune.errors import RunError
from anatune.graph.nodes import Array
from anatune.graph.summary import Check

__all__ = ["Blame", "checked", "compared"]

Blame = Callable[[Sequence[Array], Sequence[Array]], str]
"""Inputs and the original's outputs -> what is wrong with the compiled model, in words."""


def checked(compiled: CompiledModel, source: Imported, blame: Blame) -> Check:
    """Return how far a model's outputs are from the original's on random inputs.

    Integer inputs are the caller's where there are some: ids have to name something.

    Raises
    ------
    RunError
        As `compared`.
    """
    assert source.reference is not None
    give_back()  # what compilers have freed
    inputs = list(compiled.random_inputs())
    if source.example is not None:
        inputs = [
            given if given.dtype.kind not in "fc" else drawn
            for given, drawn in zip(source.example, inputs, strict=True)
        ]
    got = compiled(*inputs)
    listed = list(got) if compiled.summary.is_tuple else [got]
    want, library = source.reference([array.copy() for array in inputs])
    names = [output.name for output in compiled.summary.outputs]
    return compared(listed, want, names, library, lambda: blame(inputs, want))


def compared(
    got: Sequence[Array],
    want: Sequence[Array],
    names: Sequence[str],
    reference: str,
    blame: Callable[[], str] | None = None,
) -> Check:
    """Return how far outputs are from the original's.

    Parameters
    ----------
    blame : callable, optional
        Returns what is wrong where one differs.

    Raises
    ------
    RunError
        One is further than `faults.TOLERANCE`, or of another shape; the message names it.
    """
    if len(got) != len(want):
        raise RunError(f"check: the compiled model has {len(got)} outputs, {reference} {len(want)}")
    worst, limit = 0.0, max(tolerance_of(one) for one in got)
    for name, own, other in zip(names, got, want, strict=True):
        if own.shape != other.shape:
            raise RunError(f"check: output {name} has shape {own.shape}, {reference} says {other.shape}")
        error, tolerance = error_of(own, other), tolerance_of(own)
        if not error <= tolerance:
            raise RunError(
                f"check: output {name} is wrong by {error:.3g} of its largest magnitude beside {reference}, "
                f"expected at most {tolerance:g}{'; ' + blame() if blame is not None else ''}; "
                "check=False (--no-check) builds it all the same"
            )
        worst = max(worst, error)
    return Check(worst, limit, reference)
