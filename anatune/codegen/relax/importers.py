"""TVM's importer of PyTorch's programs: what it lacks or gets wrong as a table, and errors that say where they arose.

It raises whatever its code runs into; here that becomes one line with the operator, its node and the cause.
"""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from anatune.codegen.compat import import_tvm, last_line
from anatune.errors import WorkloadError
from anatune.untyped import TorchObject, TvmObject

__all__ = ["relax_of_program", "torch_operators"]

_SELF_EXPLAINING = (RuntimeError, ValueError, TypeError, NotImplementedError)
"""Errors whose messages are sentences; those of others mean little without their names ("KeyError: 'x'")."""


def relax_of_program(program: TorchObject, name: str) -> TvmObject:
    """Return an exported program of PyTorch's core operators as a Relax module; `name` is for messages.

    Raises
    ------
    WorkloadError
        TVM cannot import it.
    """
    with _one_line(name):
        return _torch_importer(name).from_exported_program(program, False, False, False, None)


def torch_operators() -> frozenset[str]:
    """Return the names of PyTorch's core operators that can be imported, such as "add.Tensor"."""
    return frozenset(_torch_importer("").convert_map)


@contextlib.contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Make a `WorkloadError` of whatever an importer raises."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # TVM prints what it refuses
            warnings.simplefilter("ignore")
            yield
    except WorkloadError:
        raise
    except Exception as error:  # importers share no class of errors
        raise WorkloadError(f"TVM cannot import {name}: {_cause(error)}") from error


def _cause(error: Exception) -> str:
    text = last_line(error)
    return text if isinstance(error, _SELF_EXPLAINING) and text else f"{type(error).__name__}: {text}"


def _unknown(name: str, places: Mapping[str, list[str]], other: str = "") -> WorkloadError:
    """Return the error for operators that an importer does not know: operator -> where the model has it."""
    words = [
        f"{operator} ({nodes[0]}{f' and {len(nodes) - 1} more' if nodes[1:] else ''})"
        for operator, nodes in places.items()
    ]
    return WorkloadError(
        f"TVM cannot import {name}: it does not know {', '.join(words)}; export the model with other operators{other}"
    )


Convert = Callable[[TorchObject], TvmObject]
"""What imports a node of an exported program."""


def _torch_importer(name: str) -> TvmObject:
    import_tvm()
    from tvm import relax
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    class Importer(ExportedProgramImporter):  # type: ignore[misc]
        """TVM's importer of exported programs."""

        def _named(self, convert: Convert) -> Convert:
            """Return what imports an operator, with errors that name its node; results without elements are known."""

            def converted(node: TorchObject) -> TvmObject:
                value = node.meta.get("val")
                try:
                    if _is_empty(value):
                        return self.block_builder.emit(relax.const(np.zeros(tuple(value.shape), _dtype(value))))
                    return convert(node)
                except WorkloadError:
                    raise
                except Exception as error:  # importers share no class of errors
                    word = getattr(node.target, "__name__", node.target)
                    raise WorkloadError(
                        f"TVM cannot import {word} ({_place(node)}) of {name}: {_cause(error)}"
                    ) from error

            return converted

        def create_convert_map(self) -> dict[str, Convert]:
            """Return what imports each operator."""
            own = {operator: functools.partial(convert, self) for operator, convert in _TORCH.items()}
            known = {**super().create_convert_map(), **own}
            return {operator: self._named(convert) for operator, convert in known.items()}

        def _check_unsupported_func_type(self, nodes: Iterable[TorchObject]) -> None:
            missing: dict[str, list[str]] = {}
            for node in nodes:
                if node.op == "call_function" and node.target.__name__ not in self.convert_map:
                    missing.setdefault(node.target.__name__, []).append(_place(node))
            if missing:
                raise _unknown(name, missing, ", or run it by torch.compile, which leaves them to PyTorch")

    return Importer()


def _place(node: TorchObject) -> str:
    """Return where a model has an operator: its node, and the path of the module that calls it."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = modules[-1][0] if modules else ""
    return f"node {node.name} in {path}" if path else f"node {node.name}"


def _is_empty(value: TorchObject) -> bool:
    """Whether a value of an exported program is a tensor without elements; sizes may be symbols."""
    return any(isinstance(size, int) and size == 0 for size in getattr(value, "shape", ()))


def _dtype(value: TorchObject) -> str:
    return str(value.dtype).removeprefix("torch.")


def _argument(node: TorchObject, place: int, name: str, default: object = None) -> TorchObject:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _cast(importer: TvmObject, node: TorchObject, dtype: str) -> TvmObject:
    """Return what a node computed in a dtype."""
    from tvm import relax

    value = importer.env[node]
    return value if _dtype(node.meta["val"]) == dtype else importer.block_builder.emit(relax.op.astype(value, dtype))


def _cumsum(importer: TvmObject, node: TorchObject) -> TvmObject:
    """Import a cumulative sum in the dtype that PyTorch gives it.

    TVM 0.27 leaves the dtype out where the program does: PyTorch counts truth values and small integers in int64, TVM's
    sums stay what is added up. Counts of more than one are then lost, and LLVM has no sum of truth values that TVM
    would write (the attention masks of packed sequences, as GPT-2's, are such counts).
    """
    from tvm import relax

    axis = _argument(node, 1, "dim")
    return importer.block_builder.emit(relax.op.cumsum(importer.env[node.args[0]], axis, _dtype(node.meta["val"])))


def _cat(importer: TvmObject, node: TorchObject) -> TvmObject:
    """Import a concatenation without the tensors that have no elements, which may be of any rank.

    Caches of language models begin with such a one.
    """
    from tvm import relax

    dtype = _dtype(node.meta["val"])
    parts = [_cast(importer, part, dtype) for part in node.args[0] if not _is_empty(part.meta["val"])]
    return importer.block_builder.emit(relax.op.concat(parts, axis=_argument(node, 1, "dim", 0)))


def _elu(importer: TvmObject, node: TorchObject) -> TvmObject:
    """Import an ELU with its three factors, of which TVM 0.27 reads the first: SELU has two."""
    from tvm import relax

    names = ("alpha", "scale", "input_scale")
    alpha, scale, inner = (_argument(node, place + 1, name, 1.0) for place, name in enumerate(names))
    x, dtype = importer.env[node.args[0]], _dtype(node.meta["val"])
    power = relax.op.exp(relax.op.multiply(x, relax.const(inner, dtype)))
    below = relax.op.nn.relu(relax.op.subtract(relax.const(1.0, dtype), power))
    below = relax.op.multiply(below, relax.const(-alpha * scale, dtype))
    return importer.block_builder.emit(
        relax.op.add(relax.op.multiply(relax.op.nn.relu(x), relax.const(scale, dtype)), below)
    )


def _where(importer: TvmObject, node: TorchObject) -> TvmObject:
    """Import a choice between two tensors in the dtype that PyTorch gives it: TVM wants both in one."""
    from tvm import relax

    values = [_cast(importer, value, _dtype(node.meta["val"])) for value in node.args[1:]]
    return importer.block_builder.emit(relax.op.where(importer.env[node.args[0]], *values))


_TORCH: dict[str, Callable[[TvmObject, TorchObject], TvmObject]] = {
    "cat.default": _cat,
    "cumsum.default": _cumsum,
    "elu.default": _elu,
    "where.self": _where,
}
"""Operator -> what imports it (importer, node) in the place of TVM's."""
