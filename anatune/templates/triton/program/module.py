"""The text around the kernels of a module, and the order in which programs compute tiles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from anatune.core.schedule import Schedule
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script
from anatune.templates.gpu.ranged import Ranged
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton.program.kernel import TritonKernel
from anatune.templates.triton.program.sizes import TileSizes

__all__ = ["module_text", "write_walk"]


def module_text(
    schedule: Schedule,
    title: str,
    kernels: Sequence[TritonKernel],
    constants: Mapping[str, int | float],
    body: str,
    workspace: tuple[Buffer, str] | None = None,
    ranged: Ranged | None = None,
) -> str:
    """Return the text of a module: docstring with its launches, imports, constants that the body uses, body.

    Parameters
    ----------
    workspace : (Buffer, str), optional
        Memory between two kernels, and its content in words.
    ranged : Ranged, optional
        The axis whose extent the kernels take.
    """
    hardware, workload, text = gpu_of(schedule), schedule.workload, Script()
    text.line(f'"""{title}: {workload.describe()}.\n')
    text.line(f"For {hardware.name} ({hardware.arch}), tiles by anatune's analytical model of the template triton.")
    text.line(f"Schedule {schedule.key}. Launch:")
    for kernel in kernels:
        names, grid = ", ".join(buffer.tensor for buffer in kernel.parameters), str(kernel.grid)
        if ranged is not None:
            names += f", {ranged.parameter}"
        if ranged is not None and kernel.growth is not None:
            grid = kernel.growth.expression(ranged.parameter, "//")
        more = "".join(f", {name}={value!r}" for name, value in kernel.options.items())
        launched = f"num_warps={kernel.num_warps}, num_stages={kernel.num_stages}{more}"
        text.line(f"    {kernel.name}[({grid},)]({names}, {launched})")
    text.line("where" if ranged is None else f"where, at {ranged.axis} = {ranged.most},")
    for access in (*workload.operands, *workload.further, workload.write):
        text.line(f"    {access.tensor}: {access.dtype} {'x'.join(map(str, access.shape))}, row-major")
    if workspace is not None:
        buffer, what = workspace
        text.line(f"    {buffer.tensor}: {buffer.dtype} {'x'.join(map(str, buffer.shape))}, {what}")
    text.line('"""\n\nimport triton\nimport triton.language as tl\n')
    for name, number in constants.items():
        if re.search(rf"\b{name}\b", body):
            text.line(f"{name} = tl.constexpr({number})")
    return f"{text}\n\n{body}"


def write_walk(text: Script, sizes: TileSizes, vendor: str, row: str = "first_m") -> None:
    """Write the statements by which a program finds its tile.

    Parameters
    ----------
    row : str
        "first_m": the first row of the tile. Another name: the number of its row of tiles.
    """
    tile = "program"
    if sizes.split > 1:
        text.line("part = program // (TILES * BATCH)" if sizes.batch > 1 else "part = program // TILES")
    within = (" % BATCH", " % TILES") if sizes.split > 1 else ("", "")
    batch, number = f"program // TILES{within[0]}", "program % TILES"
    if sizes.mixes_products:  # neighbours share sectors
        batch, number = "program % BATCH", f"program // BATCH{within[1]}"
    if sizes.batch > 1:
        text.line(f"batch = {batch}")
    if sizes.split > 1 or sizes.batch > 1:
        tile = "tile"
        text.line(f"tile = {number}")
    step = " * BLOCK_M" if row == "first_m" else ""
    if sizes.group >= sizes.tiles["m"]:
        text.line(f"{row} = {tile} % TILES_M{step}")
        text.line(f"first_n = {tile} // TILES_M * BLOCK_N")
    elif sizes.group == 1:
        text.line(f"{row} = {tile} // TILES_N{step}")
        text.line(f"first_n = {tile} % TILES_N * BLOCK_N")
    else:
        text.line("# groups of GROUP_M rows of tiles, column by column: neighbours find operands in L2")
        text.line(f"group = {tile} // (GROUP_M * TILES_N)")
        rows = "GROUP_M"
        if sizes.tiles["m"] % sizes.group or sizes.varies == "m":
            rows = "rows"
            text.line("rows = tl.minimum(TILES_M - group * GROUP_M, GROUP_M)")
        number = f"group * GROUP_M + {tile} % (GROUP_M * TILES_N) % {rows}"
        text.line(f"{row} = ({number}){step}" if step else f"{row} = {number}")
        text.line(f"first_n = {tile} % (GROUP_M * TILES_N) // {rows} * BLOCK_N")
    if vendor == "amd":
        text.line("# what lets addresses be 32-bit offsets in a buffer")
        for index in ("m", "n") if step else ("n",):
            text.line(f"tl.assume(first_{index} >= 0)")
            text.line(f"tl.assume(first_{index} < {index.upper()})")
