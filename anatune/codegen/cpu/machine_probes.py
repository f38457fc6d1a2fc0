"""Probes of a CPU's clock, caches, memory and thread start: everything except vector arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from anatune.codegen.cpu.probes import CALL_S, Probe, probe_script
from anatune.core.hardware.spec import CpuSpec
from anatune.emit.kernels import vector_attributes
from anatune.emit.script import Script, buffer_type, open_function

_CLOCK_LINKS = 32
"""Number of additions, and of exclusive ors, in one iteration of `clock_probe`."""
_WALK_VECTORS = 16
_CHASE_LINKS = 8

TILE_COUNTS = {"product_cycles": 4, "latency_cycles": 1, "load_cycles": 6, "store_cycles": 4}
"""Number of a spec's `TileUnit` -> number of AMX tiles that its probe adds to, loads or stores in turn."""
_TILE_BYTES, _TILE_CYCLES = 1024, 16

_NO_UNROLL = '!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}\n'


def clock_probe(hardware: CpuSpec, name: str, *, seconds: float = CALL_S) -> Probe:
    """Return a probe of dependent integer additions and exclusive ors, one a cycle on every CPU; work in steps.

    It measures the core's clock without knowledge of its vector units.
    """
    trips = max(1, round(seconds * hardware.compute.clock_hz / (2 * _CLOCK_LINKS)))
    body = []
    value = "%x"
    for link in range(_CLOCK_LINKS):
        body += [f"  %s{link} = add i64 {value}, %a", f"  %t{link} = xor i64 %s{link}, %b"]
        value = f"%t{link}"
    llvm = _function(
        f"clock_{name}(ptr %p, ptr %q, ptr %r) noinline nounwind",
        "  %a = load volatile i64, ptr %p, align 4",
        "  %b = load volatile i64, ptr %q, align 4",
        *_loop([f"  %x = phi i64 [%b, %entry], [{value}, %loop]", *body], trips),
        f"  store volatile i64 {value}, ptr %r, align 4",
    )
    call = f'T.evaluate(T.call_extern("void", "clock_{name}", A.data, B.data, C.data))'
    sizes = (2, 2, 2)
    return Probe(name, probe_script(name, sizes, [], call), llvm, sizes, 2 * _CLOCK_LINKS * trips)


def walk_probe(
    hardware: CpuSpec, name: str, kind: Literal["load", "store"], num_bytes: int, *, passes: int = 1, threads: int = 1
) -> Probe:
    """Return a probe that loads `num_bytes` of A, or stores to C, in order and in whole vectors; work in bytes.

    Every thread has its own bytes.
    """
    lanes = hardware.fp32_lanes
    step_bytes = _WALK_VECTORS * lanes * 4
    trips = max(1, num_bytes // step_bytes)
    vector = f"<{lanes} x float>"
    body = ["  %at = phi ptr [%a, %again], [%then, %loop]"]
    for link in range(_WALK_VECTORS):
        body.append(f"  %p{link} = getelementptr {vector}, ptr %at, i64 {link}")
        if kind == "load":
            body.append(f"  %v{link} = load volatile {vector}, ptr %p{link}, align {4 * lanes}")
        else:
            body.append(f"  store volatile {vector} zeroinitializer, ptr %p{link}, align {4 * lanes}")
    body.append(f"  %then = getelementptr i8, ptr %at, i64 {step_bytes}")
    llvm = _function(
        f"walk_{name}(ptr %base, i64 %from) noinline nounwind {vector_attributes(lanes)}",
        "  %a = getelementptr float, ptr %base, i64 %from",
        "  br label %again",
        "again:",
        "  %n = phi i64 [0, %entry], [%m, %over]",
        *_loop(body, trips, before="again", behind="over"),
        "  %m = add nuw nsw i64 %n, 1",
        f"  %end = icmp eq i64 %m, {passes}",
        "  br i1 %end, label %done, label %again, !llvm.loop !0",
        "done:",
    )
    elements = trips * step_bytes // 4
    tensor, sizes = ("A", (elements * threads, 1, 1)) if kind == "load" else ("C", (1, 1, elements * threads))
    start = f'T.Cast("int64", chunk * {elements})'
    call = f'T.evaluate(T.call_extern("void", "walk_{name}", {tensor}.data, {start}))'
    work = trips * step_bytes * passes * threads
    return Probe(name, probe_script(name, sizes, [], call, threads), llvm, sizes, work)


def chase_probe(name: str, num_bytes: int, steps: int) -> Probe:
    """Return a probe that follows pointers through A for `steps` dependent loads; work in steps.

    A holds byte offsets as 64-bit integers; C holds the one to start from, which is where the previous call ended.
    """
    body = [f"  %o0 = phi i64 [%from, %entry], [%o{_CHASE_LINKS}, %loop]"]
    for link in range(_CHASE_LINKS):
        body.append(f"  %p{link} = getelementptr i8, ptr %a, i64 %o{link}")
        body.append(f"  %o{link + 1} = load volatile i64, ptr %p{link}, align 8")
    trips = max(1, steps // _CHASE_LINKS)
    llvm = _function(
        f"chase_{name}(ptr %a, ptr %c) noinline nounwind",
        "  %from = load volatile i64, ptr %c, align 8",
        *_loop(body, trips),
        f"  store volatile i64 %o{_CHASE_LINKS}, ptr %c, align 8",
    )
    call = f'T.evaluate(T.call_extern("void", "chase_{name}", A.data, C.data))'
    sizes = (num_bytes // 4, 1, 2)
    return Probe(name, probe_script(name, sizes, [], call), llvm, sizes, _CHASE_LINKS * trips)


def start_probe(name: str, threads: int) -> Probe:
    """Return a probe of a parallel loop with `threads` iterations that store one element each; work in starts."""
    sizes = (1, 1, 16 * threads)
    text = Script()
    open_function(
        text, name, [(tensor, buffer_type((size,), "float32")) for tensor, size in zip("ABC", sizes, strict=True)]
    )
    with text.scope(f"for i in T.parallel({threads}):", f'with T.sblock("{name}_fill"):'):
        text.line(f"T.writes(C[0:{sizes[2]}])")
        text.line("C[i * 16] = T.float32(1)")
    return Probe(name, str(text), "", sizes, 1)


def tile_unit_probe(hardware: CpuSpec, number: str, *, seconds: float = CALL_S) -> Probe:
    """Return a probe of AMX: products of whole tiles, loads from L1 or stores to it, for a number of `TILE_COUNTS`.

    Work is the number of instructions of one kind; buffers may hold any bits. Loaded tiles are stored after the loop,
    because LLVM would otherwise remove the loads.
    """
    indices = range(TILE_COUNTS[number])
    trips = max(1, round(seconds * hardware.compute.clock_hz / (_TILE_CYCLES * len(indices))))
    shape = "i16 16, i16 64"
    product = hardware.amx[0] if hardware.amx else ""
    declared = [
        f"declare x86_amx @llvm.x86.{product}.internal(i16, i16, i16, x86_amx, x86_amx, x86_amx)",
        "declare x86_amx @llvm.x86.tileloadd64.internal(i16, i16, ptr, i64)",
        "declare void @llvm.x86.tilestored64.internal(i16, i16, ptr, i64, x86_amx)",
    ]

    def load(tile: str, pointer: str) -> str:
        return f"  %{tile} = call x86_amx @llvm.x86.tileloadd64.internal({shape}, ptr %{pointer}, i64 64)"

    def store(tile: str, pointer: str) -> str:
        return f"  call void @llvm.x86.tilestored64.internal({shape}, ptr %{pointer}, i64 64, x86_amx %{tile})"

    ahead, body, behind = [], [], [store(f"t{place}", f"r{place}") for place in indices]
    for index in indices:
        ahead += [f"  %{to}{index} = getelementptr i8, ptr %{to}, i64 {_TILE_BYTES * index}" for to in "pr"]
    if number == "load_cycles":
        body = [load(f"t{place}", f"p{place}") for place in indices]
    elif number == "store_cycles":
        ahead += [load(f"t{place}", f"p{place}") for place in indices]
        body, behind = behind, []
    else:
        ahead += [load("a", "p0"), load("b", "q"), *(load(f"c{place}", f"r{place}") for place in indices)]
        body = [f"  %s{place} = phi x86_amx [%c{place}, %entry], [%t{place}, %loop]" for place in indices]
        for index in indices:
            tiles = ", ".join(f"x86_amx %{tile}" for tile in (f"s{index}", "a", "b"))
            body.append(f"  %t{index} = call x86_amx @llvm.x86.{product}.internal({shape}, i16 64, {tiles})")
    head = f"tiles_{number}(ptr %p, ptr %q, ptr %r) noinline nounwind"
    llvm = "\n".join([*declared, _function(head, *ahead, *_loop(body, trips), *behind)])
    call = f'T.evaluate(T.call_extern("void", "tiles_{number}", A.data, B.data, C.data))'
    elements = _TILE_BYTES * max(TILE_COUNTS.values()) // 4
    sizes = (elements, _TILE_BYTES // 4, elements)
    return Probe(number, probe_script(number, sizes, [], call), llvm, sizes, trips * len(indices))


def _loop(body: Iterable[str], trips: int, *, before: str = "entry", behind: str = "done") -> list[str]:
    """Return the IR of a loop with a known number of iterations between two labels."""
    return [
        "  br label %loop",
        "loop:",
        f"  %i = phi i64 [0, %{before}], [%next, %loop]",
        *body,
        "  %next = add nuw nsw i64 %i, 1",
        f"  %last = icmp eq i64 %next, {trips}",
        f"  br i1 %last, label %{behind}, label %loop, !llvm.loop !0",
        f"{behind}:",
    ]


def _function(head: str, *lines: str) -> str:
    """Return a module with one function whose loops are not unrolled."""
    return "\n".join([f"define internal void @{head} {{", "entry:", *lines, "  ret void", "}", _NO_UNROLL])
