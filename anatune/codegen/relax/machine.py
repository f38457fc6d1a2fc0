"""A built model's library in this process. Of TVM only the runtime is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from anatune.codegen.compat import TVM_ERRORS, TvmObject, import_tvm, last_line
from anatune.errors import RunError

__all__ = ["Machine"]

_HELPERS = "vm.builtin."
"""What the names of the runtime's own functions begin with: allocating, checking, naming memory anew."""


class Machine:
    """The functions of a library that `building.built` made.

    Parameters
    ----------
    library : Path
    weights : sequence of tensors of TVM's
        As `writing.Weight` says, on the device; they are kept alive, not copied.
    device : tvm.runtime.Device, optional
        The CPU by default.

    Raises
    ------
    RunError
        The library cannot be loaded.
    MissingDependencyError
        TVM is not installed.
    """

    def __init__(self, library: Path, weights: Sequence[TvmObject], device: TvmObject = None) -> None:
        tvm = import_tvm()
        self._device = device or tvm.cpu()
        try:
            self._library = tvm.runtime.load_module(str(library))
            self._main: Callable[..., TvmObject] = self._machine()["main"]
        except (RuntimeError, AttributeError, ValueError, OSError) as error:
            raise RunError(f"{library} cannot be loaded: {last_line(error)}") from None
        self._weights = tvm.runtime.convert(list(weights))

    def run(self, *inputs: TvmObject) -> TvmObject:
        """Return the result of the model: a tensor, or an array of them.

        Raises
        ------
        RunError
            TVM refuses the inputs or the weights, or there is too little memory.
        """
        try:
            return self._main(*inputs, self._weights)
        except TVM_ERRORS as error:
            raise RunError(f"the model cannot be run: {last_line(error):.300}; compile it again") from None

    def wait(self) -> None:
        """Wait until everything that was started is done: a CPU's calls return when it is."""

    def times(self, inputs: Sequence[TvmObject], runs: int) -> dict[str, float]:
        """Return the least time of each function over some runs, all its calls in a run together, s."""
        found: list[dict[str, float]] = []
        began = 0.0
        machine = self._machine()  # of its own: one that was instrumented once calls Python before and after everything

        def instrument(_function: TvmObject, name: str, before: bool, *_: TvmObject) -> int:
            nonlocal began
            self.wait()
            if before:
                began = time.perf_counter()
            else:
                found[-1][name] = found[-1].get(name, 0.0) + time.perf_counter() - began
            return 0

        machine.set_instrument(instrument)
        main = machine["main"]
        for _ in range(runs):
            found.append({})
            main(*inputs, self._weights)
        return {name: min(run[name] for run in found) for name in found[0] if not name.startswith(_HELPERS)}

    def _machine(self) -> TvmObject:
        from tvm.runtime.vm import VirtualMachine

        return VirtualMachine(self._library, self._device)
