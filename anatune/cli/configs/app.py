"""``anatune configs``: the files of tile configurations that vLLM and SGLang look for, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anatune.cli.options import AsJson, Device, spread
from anatune.cli.output import UsageError, line_width, print_json, print_lines
from anatune.cli.panels import Grouped, subcommands
from anatune.cli.progress import Progress

if TYPE_CHECKING:
    from anatune.adapters.serving.names import Server
    from anatune.adapters.serving.shapes import Experts, Product
    from anatune.core.hardware.spec import GpuSpec

__all__ = ["app"]

app = subcommands("Write the files of tile configurations that servers look for, or judge one. No GPU is needed.")


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """Which layer, split over how many ranks."""

    model: Annotated[Path | None, typer.Option("--model", metavar="FILE", help="config.json of Hugging Face.")] = None
    experts: Annotated[int | None, typer.Option("--experts", min=1, max=1 << 16, help="Experts of the layer.")] = None
    intermediate: Annotated[
        int | None, typer.Option("--intermediate", min=1, max=1 << 24, help="Of an expert, before it is split.")
    ] = None
    hidden: Annotated[int | None, typer.Option("--hidden", min=1, max=1 << 24, help="Hidden size.")] = None
    top_k: Annotated[int | None, typer.Option("--top-k", min=1, max=1 << 16, help="Experts that a token takes.")] = None
    n: Annotated[
        int | None, typer.Option("--n", min=1, max=1 << 24, help="Of a block-scaled product's weights (n, k).")
    ] = None
    k: Annotated[int | None, typer.Option("--k", min=1, max=1 << 24, help="The same; both on one rank.")] = None
    tp: Annotated[int, typer.Option("--tp", min=1, max=1 << 10, help="Tensor-parallel ranks.")] = 1
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="auto (16 bits), fp8_w8a8, int8_w8a8, int8_w8a16.  [default: the model's, auto]"),
    ] = None
    block_shape: Annotated[
        str | None, typer.Option("--block-shape", metavar="N,K", help="Of weights that share a scale: 128,128.")
    ] = None
    power_law: Annotated[
        float | None,
        typer.Option("--power-law", min=0.0, max=8.0, help="Exponent of the experts' popularity; left out: at random."),
    ] = None

    def shape(self, known: dict[str, str] | None = None) -> Experts | Product:
        """Return the layer on one rank; `known`: what a file's name says already."""
        from anatune.adapters.serving.shapes import Experts, Product, model_experts
        from anatune.files import read_file

        known = known or {}
        block = self._block() or _block_of(known)
        dtype = self.dtype or known.get("dtype")
        n, k = self.n or _number(known, "rows"), self.k or _number(known, "k")
        if n or k:
            if not (n and k) or self.model or self.experts:
                raise UsageError("--n and --k go together, without --model and --experts: they are a product's")
            return Product(n, k, dtype or "fp8_w8a8", block or (128, 128))
        if self.model is not None:
            found = model_experts(read_file(self.model), str(self.model), self.tp)
            return msgspec.structs.replace(found, dtype=dtype or found.dtype, block=block or found.block)
        experts = self.experts or _number(known, "experts")
        intermediate = self._per_rank() if self.intermediate else _number(known, "n")
        if not (experts and intermediate and self.hidden and self.top_k):
            raise UsageError(
                "which layer? Say --model CONFIG.json, or --experts --intermediate --hidden --top-k, or --n --k"
                if not known else "the file's name does not tell --hidden and --top-k (or --model); say them"
            )  # fmt: skip
        return Experts(experts, intermediate, self.hidden, self.top_k, dtype or "auto", block)

    def _per_rank(self) -> int:
        whole = self.intermediate or 0
        if whole % self.tp:
            raise UsageError(f"--intermediate {whole} does not divide by --tp {self.tp}")
        return whole // self.tp

    def _block(self) -> tuple[int, int] | None:
        if self.block_shape is None:
            return None
        sizes = self.block_shape.strip("[] ").split(",")
        if len(sizes) != 2 or not all(size.strip().isdecimal() for size in sizes):
            raise UsageError(f"--block-shape is {self.block_shape!r}, expected two sizes such as 128,128")
        return int(sizes[0]), int(sizes[1])


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """Where files go, and what they hold."""

    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the files go.")]
    rows: Annotated[
        str | None, typer.Option("--rows", metavar="M,M,..", help="Entries of a file.  [default: servers' usual ones]")
    ] = None
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=0, max=1024, help="Also list the N tiles that deserve a run.")
    ] = 0
    device_name: Annotated[
        str | None, typer.Option("--device-name", metavar="NAME", help="As the driver says it, where it is not known.")
    ] = None

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of rows."""
        from anatune.adapters.serving.choose import ROWS

        if self.rows is None:
            return ROWS
        words = [word.strip() for word in self.rows.split(",")]
        if not all(word.isdecimal() and 1 <= int(word) <= 1 << 20 for word in words):
            raise UsageError(f"--rows is {self.rows!r}, expected numbers from 1 to {1 << 20} such as 1,16,256")
        return tuple(sorted({int(word) for word in words}))


@app.command("vllm", cls=Grouped)
@spread
def vllm(layer: Layer, writing: Writing, hw: Device, as_json: AsJson = False) -> None:
    """Write the files that vLLM looks for."""
    _write("vllm", layer, writing, hw, as_json)


@app.command("sglang", cls=Grouped)
@spread
def sglang(
    layer: Layer,
    writing: Writing,
    hw: Device,
    triton_version: Annotated[
        str | None, typer.Option("--triton-version", metavar="X.Y.Z", help="Of Triton in the server: names a folder.")
    ] = None,
    down: Annotated[bool, typer.Option("--down", help="A file of its own for the down product.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the files that SGLang looks for."""
    _write("sglang", layer, writing, hw, as_json, triton=triton_version, down=down)


@app.command("check", cls=Grouped)
@spread
def check(
    layer: Layer,
    hw: Device,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A server's file; its name says the layer.")],
    as_json: AsJson = False,
) -> None:
    """Say how far the model thinks each entry of a file is from its best."""
    from anatune.adapters.serving.files import check_file
    from anatune.adapters.serving.names import parse_name
    from anatune.adapters.serving.report import judged_lines

    shape = layer.shape(parse_name(file.name))
    judged = check_file(file, shape, _gpu(hw), layer.power_law)
    if as_json:
        print_json(judged)
    else:
        print_lines(judged_lines(judged, line_width()))


def _write(
    server: Server,
    layer: Layer,
    writing: Writing,
    hw: str,
    as_json: bool,
    *,
    triton: str | None = None,
    down: bool = False,
) -> None:
    from anatune.adapters.serving.files import Request, write_configs
    from anatune.adapters.serving.report import written_lines
    from anatune.adapters.serving.shapes import Experts

    shape = layer.shape()
    if server == "sglang" and isinstance(shape, Experts) and triton is None:
        raise UsageError(
            "--triton-version is missing: SGLang's folders are named by what triton.__version__ says there"
        )
    if down and not isinstance(shape, Experts):
        raise UsageError("--down goes with experts; leave it out for --n and --k")
    request = Request(
        server, _gpu(hw), (shape,), writing.numbers(), writing.keep, writing.device_name, triton, down, layer.power_law
    )
    with Progress() as progress:
        written = write_configs(request, writing.output, progress.count("numbers of rows"))
    if as_json:
        print_json({"written": written, "notes": request.notes()})
    else:
        print_lines(written_lines(request, writing.output, written, line_width()))


def _gpu(name: str) -> GpuSpec:
    from anatune import api
    from anatune.core.hardware.spec import GpuSpec
    from anatune.errors import SpecError

    spec = api.hardware(name)
    if not isinstance(spec, GpuSpec):
        raise SpecError(f"--hw {name}: {spec.name} is no GPU, expected one that a server runs on, such as h100_sxm")
    return spec


def _number(known: dict[str, str], name: str) -> int | None:
    return int(known[name]) if name in known else None


def _block_of(known: dict[str, str]) -> tuple[int, int] | None:
    return (int(known["block_n"]), int(known["block_k"])) if "block_n" in known else None
