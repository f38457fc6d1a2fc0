"""Builders for tests of measuring: a small TVM matmul, and schedules that misbehave in every way.

A schedule's ``options["fault"]`` says what goes wrong; builder processes find these functions by name.
"""

import os
import signal
import time
from pathlib import Path

import anatune
from anatune.codegen.cpu.artifact import CpuArtifact, Packing
from anatune.core.schedule import Schedule
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError, SpaceError
from anatune.measure.cpu.measurer import CPU_ENTRIES

ENTRIES = CPU_ENTRIES._replace(
    builder="tests.unit.measure.stand_ins:build", reference="tests.unit.measure.stand_ins:build_reference"
)

WORKLOAD = anatune.matmul(16, 32, 24)


def schedule(hardware, fault="", number=0, workload=WORKLOAD):
    """A schedule of the CPU template in form only: the stand-in builder reads its fault."""
    tiles = {axis: (extent,) for axis, extent in workload.extents.items()}
    return Schedule(workload, hardware, "cpu", tiles, unroll=number, options={"fault": fault})


def build(schedule, folder: Path, *, threads=1) -> CpuArtifact:
    fault = schedule.options["fault"]
    if fault == "build hangs":
        time.sleep(1000)
    if fault == "build hangs in a child":
        os.system("sleep 1000")
    if fault == "build crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "build exits":
        os._exit(3)
    if fault == "build eats memory":
        return bytearray(1 << 40)
    if fault == "build fails":
        raise BuildError("LLVM says no")
    if fault == "build raises":
        raise KeyError("oops")
    if fault == "no program":
        raise SpaceError("no such tile")
    return compile_matmul(schedule.workload, Path(folder), fault, threads)


def build_reference(hardware, folder: Path) -> CpuArtifact:
    return compile_matmul(anatune.matmul(64, 64, 64), Path(folder), "", 1)


def compile_matmul(workload, folder: Path, fault="", threads=1) -> CpuArtifact:
    """C = A B with B packed ahead of the run (as it is), or something worse."""
    import tvm
    from tvm.script import tirx

    m, n, k = (workload.extents[axis] for axis in "ijk")
    slow = 20 if fault == "slow" else 1
    wrong = "C[0, 1] = T.float32(3)" if fault == "wrong result" else ""
    extra = {
        "run crashes": 'T.evaluate(T.call_extern("int32", "raise", T.int32(11)))',
        "run aborts": 'T.evaluate(T.call_extern("int32", "abort"))',
        "run exits": 'T.evaluate(T.call_extern("int32", "_exit", T.int32(7)))',
        "run hangs": 'T.evaluate(T.call_extern("int32", "pause"))',
        "changes an operand": "A[0, 0] = T.float32(7)",
        "changes a constant": "B[0, 0] = B[0, 0] + T.float32(1)",
        "writes outside": f'T.evaluate(T.call_extern("handle", "memset", T.address_of(C[0, 0]), 0, {m * n * 4 + 4}))',
        "fails": 'T.evaluate(T.call_packed("no_such_function", 1))',
    }.get(fault, "")
    lines = [
        "@T.prim_func(s_tir=True)",
        f'def main(A: T.Buffer(({m}, {k}), "float32"), B: T.Buffer(({k}, {n}), "float32"), '
        f'C: T.Buffer(({m}, {n}), "float32")):',
        f"    {extra or 'T.evaluate(0)'}",
    ]
    if fault != "nothing written":
        lines += [
            f"    for again in range({slow}):",
            f"      for i in range({m}):",
            f"        for j in T.vectorized({n}):",
            "            C[i, j] = T.float32(0)",
            f"        for k in range({k}):",
            f"          for j in T.vectorized({n}):",
            "            C[i, j] = C[i, j] + A[i, k] * B[k, j]",
        ]
    if wrong:
        lines.append(f"    {wrong}")
    pack = [
        "@T.prim_func(s_tir=True)",
        f'def pack_B(B: T.Buffer(({k}, {n}), "float32"), P: T.Buffer(({k}, {n}), "float32")):',
        f"    for i in range({k}):",
        f"        for j in range({n}):",
        "            P[i, j] = B[i, j]",
    ]
    functions = {
        "main": tvm.script.from_source("\n".join(lines), {"T": tirx}),
        "pack_B": tvm.script.from_source("\n".join(pack), {"T": tirx}),
    }
    path = folder / "kernel.so"
    tvm.compile(tvm.IRModule(functions), target={"kind": "llvm"}).export_library(str(path))
    arguments = (Buffer("A", "float32", (m, k)), Buffer("B", "float32", (k, n)), Buffer("C", "float32", (m, n)))
    return CpuArtifact(
        "", str(path), arguments, (Packing("B", "pack_B", arguments[1]),), threads, {"flop": 2 * m * n * k}
    )
