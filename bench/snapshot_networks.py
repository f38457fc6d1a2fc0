"""Rows of `bench.snapshot` for whole networks: hashes of all that a compiled network consists of.

Each network of `bench.networks` is compiled for a CPU, some of them for GPUs that need not be here. One row tells one
network on one device:

| field | of |
|---|---|
| kernels | all kernels: names, workloads, schedules, predicted seconds, every bit |
| operators | what was left to TVM, and kernels without a plan |
| time | predicted seconds of a run, every bit |
| memory | weights, bytes and places; launches, bytes between launches |
| tensors | inputs, outputs, sizes that vary, state, layouts |
| code | CPUs and CUDA: sections of the library with code or constants. Triton: the text of each kernel |
| launches | GPUs that Triton's kernels serve: the launches in order, with their memory |
| outputs | outputs on fixed inputs, on a CPU |
| error | the message, where there is no answer |
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

import anatune
from anatune.errors import AnatuneError
from bench.networks import NETWORKS

__all__ = ["CPU", "NetworkCase", "cases", "row_of_network", "sections"]

CPU = "ryzen_7950x"
"""The spec that networks are compiled for; this machine has to offer its instructions."""
_GPU_CASES = (
    ("residual", "h100", "bfloat16"),
    ("residual", "rtx3090", None),
    ("encoder", "h100", "bfloat16"),
    ("encoder", "mi300x", "bfloat16"),
)
_OPTIONS: dict[str, dict[str, Any]] = {
    "decoder": {"state": "auto", "sizes": {"past": (0, 64), "tokens": (1, 8)}},
    "mixed": {"sizes": {"batch": (1, 4)}},
}
_NUM_CALLS = 2
_SYMBOL = re.compile(rb"anatune_[0-9a-f]{32}")
"""Symbols of functions in libraries: the hash is of the package's sources, too."""
_SHAPE_FUNCTION = b"__tvm_ffi_shape_func"
_PROGBITS, _ALLOCATED = 1, 2


class NetworkCase(NamedTuple):
    """What one row is about."""

    network: str
    device: str
    precision: str | None = None

    @property
    def key(self) -> str:
        """Return its name, as rows are matched by it."""
        return " ".join(("network", self.network, self.device, self.precision or "float32"))


def cases(cpu: str = CPU) -> Iterator[NetworkCase]:
    """Yield every network on a CPU, then some on GPUs, always in the same order."""
    for network in NETWORKS:
        yield NetworkCase(network, cpu)
    for network, device, precision in _GPU_CASES:
        yield NetworkCase(network, device, precision)


class _Section(NamedTuple):
    """A section of a library: its header in an ELF file, and its content."""

    kind: int
    flags: int
    address: int
    content: bytes


def _read_elf(library: bytes) -> dict[str, _Section]:
    """Return the sections of a 64-bit ELF file by name."""
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("the library is no little-endian 64-bit ELF file, so its sections cannot be read")
    (table,) = struct.unpack_from("<Q", library, 40)
    size, count, names = struct.unpack_from("<3H", library, 58)
    headers = [struct.unpack_from("<IIQQQQ", library, table + number * size) for number in range(count)]
    text = library[headers[names][4] :]
    return {
        text[name : text.index(b"\0", name)].decode(): _Section(kind, flags, address, library[start : start + length])
        for name, kind, flags, address, start, length in headers
    }


def _mask_shape_functions(read: dict[str, _Section]) -> bytes:
    """Return the machine code with zeros for TVM's function of sizes.

    The order of its statements is that of addresses in TVM's memory, so that it differs between two runs of one tree.
    """
    _, _, start, content = read[".text"]
    code, names = bytearray(content), read[".dynstr"].content
    symbols = [(names[name : names.index(b"\0", name)], value)
               for name, _, _, _, value, _ in struct.iter_unpack("<IBBHQQ", read[".dynsym"].content)]  # fmt: skip
    addresses = sorted({value for _, value in symbols if value >= start} | {start + len(code)})
    for name, value in symbols:
        if name.startswith(_SHAPE_FUNCTION) and value:
            end = next(address for address in addresses if address > value)
            code[value - start : end - start] = bytes(end - value)
    return bytes(code)


def sections(library: bytes) -> dict[str, bytes]:
    """Return the sections of a 64-bit ELF library that hold code or constants, by name.

    Zeros replace what depends on more than the model: hashes in the names of functions, which are also of the package's
    sources, and TVM's function of sizes.

    Raises
    ------
    ValueError
        The library is no little-endian 64-bit ELF file.
    """
    read = _read_elf(library)
    contents = {
        name: section.content
        for name, section in read.items()
        if section.kind == _PROGBITS and section.flags & _ALLOCATED
    }
    if ".dynsym" in read and ".text" in read:
        contents[".text"] = _mask_shape_functions(read)
    return {name: _SYMBOL.sub(b"anatune_" + b"0" * 32, content) for name, content in contents.items()}


def _encode(*parts: Any) -> bytes:
    """Return parts of a summary as JSON, every bit of their numbers."""
    return msgspec.json.encode(parts, order="sorted")


def _code(model: Any) -> bytes:
    """Return the generated code."""
    if model.summary.launches:
        return _encode(sorted(model.sources().items()))
    library = sections(model.code.tobytes())
    return b"".join(library[name] for name in (".text", ".rodata") if name in library)


def _outputs(model: Any) -> bytes:
    """Return the outputs of some calls on fixed inputs, state included."""
    arrays: list[Any] = []
    for seed in range(_NUM_CALLS):
        outputs = model(*model.random_inputs(seed))
        arrays.extend(outputs if isinstance(outputs, tuple) else (outputs,))
    arrays.extend(array for _, array in sorted(model.state.items()))
    return b"".join(
        f"{array.dtype} {array.shape}\n".encode() + np.ascontiguousarray(array).tobytes() for array in arrays
    )


def fields_of(model: Any) -> Iterator[tuple[str, bytes]]:
    """Yield what a compiled network consists of: the name of each field and its content."""
    summary = model.summary
    yield "kernels", _encode(summary.kernels)
    yield "operators", _encode(summary.operators, summary.rows, summary.unscheduled)
    others = (operator.predicted_s or 0.0 for operator in (*summary.operators, *summary.rows))
    yield "time", (sum(kernel.total_s for kernel in summary.kernels) + sum(others) + summary.turning_s).hex().encode()
    yield (
        "memory",
        _encode(summary.weights, summary.weight_bytes, summary.launches, summary.arena_bytes) + model.memory.tobytes(),
    )
    yield (
        "tensors",
        _encode(summary.inputs, summary.outputs, summary.is_tuple, summary.ranges, summary.state, summary.layouts),
    )
    yield "code", _code(model)
    if summary.launches:
        yield "launches", _encode(model.program.launches)
    if summary.device == "cpu":
        yield "outputs", _outputs(model)


def row_of_network(case: NetworkCase) -> dict[str, str]:
    """Return the hashes of one network; an "error" behind what could be answered.

    Caches on disk have to be off (ANATUNE_CACHE=off), or an earlier answer is hashed.
    """
    row = {"key": case.key}
    try:
        hardware = anatune.hardware(case.device)
        model = anatune.compile(
            NETWORKS[case.network](),
            hw=hardware,
            threads=1 if hardware.kind == "cpu" else None,
            precision=case.precision,
            check=False,
            **_OPTIONS.get(case.network, {}),
        )
        for name, content in fields_of(model):
            row[name] = hashlib.sha1(content).hexdigest()[:12]
    except AnatuneError as error:
        row["error"] = str(error)
    return row
