"""Products that Triton compiles for GPUs that are not there: one program at a time, in a process that may die."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["ARCHS", "FORMATS", "Built", "Program", "compiler"]

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "gfx90a", "gfx942", "gfx950")
_POINTERS = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "tf32": "fp32",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2fnuz": "fp8e5b16",
    "int8": "i8",
    "int32": "i32",
    "mxfp8": "fp8e4nv",
    "mxfp4": "u8",
    "nvfp4": "u8",
}
FORMATS = {"bfloat16": ("bf16", 1), "mxfp8": ("e4m3", 1), "mxfp4": ("e2m1", 2), "nvfp4": ("e2m1", 2)}
"""Operand of a product with scales -> what ``tl.dot_scaled`` calls it, elements a byte."""
_PRODUCTS = r"wgmma\.mma_async[\w.:]*|tcgen05\.mma[\w.:]*|(?<!wg)mma\.sync[\w.:]*|v_mfma_\w+"


class Program(msgspec.Struct, frozen=True):
    """One product and how it is to be compiled; sums leave as `out`. With `b` of `FORMATS` both lie along k."""

    arch: str
    a: str = "float16"
    b: str = "float16"
    out: str = "float16"
    block_m: int = 64
    block_n: int = 64
    block_k: int = 64
    num_warps: int = 4
    num_stages: int = 3
    a_along_k: bool = True
    b_along_n: bool = True
    masks: bool = True
    descriptors: bool = False


class Built(msgspec.Struct, frozen=True):
    """What came out: an error's first line, or what the program needs and which instructions it has."""

    error: str = ""
    shared_bytes: int = 0
    registers: int = 0
    spilled_bytes: int = 0
    """Of a thread: the stack on NVIDIA's GPUs, spilled registers on AMD's."""
    instructions: dict[str, int] = {}
    """Of matrix units: name -> how often it is in the text."""


def _source(fn: Any, pointers: dict[str, str], numbers: tuple[str, ...], constants: dict[str, object]) -> Any:
    from triton.compiler import ASTSource

    return ASTSource(
        fn=fn,
        signature={**pointers, **dict.fromkeys(numbers, "i32"), **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in range(len(pointers) + len(numbers))},
    )


def _blocks(program: Program) -> dict[str, object]:
    return {name: getattr(program, name) for name in ("block_m", "block_n", "block_k")}


def _plain(program: Program, kernel: Any) -> Any:
    from triton.language import float32, int32

    dtypes = (program.a, program.b, program.out)
    pointers = {name: f"*{_POINTERS[dtype]}" for name, dtype in zip("abc", dtypes, strict=True)}
    constants = {
        **_blocks(program),
        "group_m": 8,
        "a_along_k": program.a_along_k,
        "b_along_n": program.b_along_n,
        "masks": program.masks,
        "sums": int32 if program.a == "int8" else float32,
        "precision": "tf32" if program.a == "tf32" else "ieee",
    }
    return _source(kernel, pointers, ("m", "n", "k", "pitch_a", "pitch_b", "pitch_c"), constants)


def _with_scales(program: Program, kernel: Any) -> Any:
    is_nv = program.b == "nvfp4"
    scale = "*fp8e4nv" if is_nv else "*u8"
    pointers = {"a": f"*{_POINTERS[program.a]}", "b": f"*{_POINTERS[program.b]}", "a_scales": scale, "b_scales": scale}
    (kind_a, pack_a), (kind_b, pack_b) = FORMATS[program.a], FORMATS[program.b]
    constants = {
        **_blocks(program),
        "kind_a": kind_a,
        "kind_b": kind_b,
        "pack_a": pack_a,
        "pack_b": pack_b,
        "run": 16 if is_nv else 32,
    }
    return _source(kernel, {**pointers, "c": f"*{_POINTERS[program.out]}"}, ("m", "n", "k"), constants)


def _build(program: Program) -> Built:
    import triton
    from triton.backends.compiler import GPUTarget

    from bench.gpu import triton_programs

    amd = program.arch.startswith("gfx")
    target = GPUTarget("hip", program.arch, 64) if amd else GPUTarget("cuda", int(program.arch[3:]), 32)
    kernel = triton_programs.by_descriptors if program.descriptors else triton_programs.by_pointers
    if program.b in FORMATS and program.b != "bfloat16":
        source = _with_scales(program, triton_programs.by_scales)
    else:
        source = _plain(program, kernel)
    options = {"num_warps": program.num_warps, "num_stages": program.num_stages}
    built = triton.compile(source, target=target, options=options)
    text = built.asm["amdgcn"] if amd else built.asm["ptx"]
    counted = Counter(re.findall(_PRODUCTS, text))
    used = _amd_registers(text) if amd else _nvidia_registers(built.asm["cubin"], Path(triton.__file__).parent)
    return Built(shared_bytes=built.metadata.shared, instructions=dict(counted), **used)


def _amd_registers(text: str) -> dict[str, int]:
    found = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", text))
    return {"registers": int(found["vgpr_count"]), "spilled_bytes": 4 * int(found["vgpr_spill_count"])}


def _nvidia_registers(cubin: bytes, triton: Path) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        words = [triton / "backends/nvidia/bin/cuobjdump", "-res-usage", file.name]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None
    return {"registers": int(found[1]), "spilled_bytes": int(found[2])}


def _quiet(folder: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = folder
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # a failing pass prints its whole program
    os.dup2(nowhere, 1)


def _guarded(program: Program) -> Built:
    try:
        return _build(program)
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises is what we ask for
        lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
        return Built(error=" / ".join([lines[0], *(line for line in lines[1:] if "rror" in line)][:3])[:300])


@contextmanager
def compiler() -> Iterator[Callable[[Program], Built]]:
    """Give a function that compiles programs in another process, which is started again when it dies."""
    with tempfile.TemporaryDirectory() as folder:
        pools: list[Any] = []

        def build(program: Program) -> Built:
            if not pools:
                pools.append(ProcessPoolExecutor(1, initializer=_quiet, initargs=(folder,)))
            try:
                found: Built = pools[0].submit(_guarded, program).result(timeout=300)
            except BrokenProcessPool:
                pools.clear()
                return Built(error="the compiler's process died")
            return found

        yield build
        for pool in pools:
            pool.shutdown()
