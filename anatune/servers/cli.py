"""The commands ``anatune configs``: files of tile configurations for vLLM and SGLang."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from anatune.arguments import quote
from anatune.cli.options import AsJson, Backend, Device, Html, Parsed, records_option, spread
from anatune.cli.output import UsageError, line_width, print_json, print_lines
from anatune.cli.outputs import check_html, write_page
from anatune.cli.panels import Grouped, subcommands
from anatune.cli.progress import Progress

if TYPE_CHECKING:
    from anatune.core.hardware.spec import GpuSpec
    from anatune.servers.measuring import MeasureOptions
    from anatune.servers.names import Server
    from anatune.servers.shapes import Experts, Product

_SIZES = ("experts", "intermediate", "hidden", "top_k")
_KEPT = 8
"""The tiles that --measure runs without --keep."""

app = subcommands("Write the files of tile configurations that servers read, or check one. Only --measure needs a GPU.")


def _count(name: str, most: int, help: str) -> Any:
    return typer.Option(name, min=1, max=most, help=help)


def _text(name: str, metavar: str, help: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help)


class LayerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that describe a layer and its ranks."""

    model: Annotated[
        Path | None, _text("--model", "FILE|FOLDER", "config.json of a Hugging Face model, or its folder.")
    ] = None
    experts: Annotated[int | None, _count("--experts", 1 << 16, "Number of experts of the layer.")] = None
    intermediate: Annotated[
        int | None, _count("--intermediate", 1 << 24, "Intermediate size of an expert, before ranks divide it.")
    ] = None
    hidden: Annotated[int | None, _count("--hidden", 1 << 24, "Hidden size of the model.")] = None
    top_k: Annotated[int | None, _count("--top-k", 1 << 16, "Number of experts for each token.")] = None
    n: Annotated[int | None, _count("--n", 1 << 24, "Rows of the weights (n, k) of a product.")] = None
    k: Annotated[int | None, _count("--k", 1 << 24, "Columns of these weights, on one rank.")] = None
    tp: Annotated[int | None, _count("--tp", 1 << 10, "Number of tensor-parallel ranks.  [default: --ep]")] = None
    ep: Annotated[int, _count("--ep", 1 << 10, "Number of these ranks over which experts are distributed.")] = 1
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            help="auto (16 bits), fp8_w8a8, int8_w8a8, int8_w8a16 or int4_w4a16.  [default: --model's, or auto]",
        ),
    ] = None
    group_size: Annotated[
        int | None,
        typer.Option("--group-size", min=0, max=1 << 10, help="Weights along k that share a scale: 32 to 128."),
    ] = None
    block_shape: Annotated[
        str | None, _text("--block-shape", "N,K", "Size of the blocks of weights that share a scale: 128,128.")
    ] = None
    power_law: Annotated[
        float | None,
        typer.Option(
            "--power-law", min=0.0, max=8.0, help="Power law by which tokens choose experts.  [default: random]"
        ),
    ] = None
    triton_version: Annotated[
        str | None,
        _text("--triton-version", "X.Y.Z", "Triton's version on the server; sglang needs it.  [default: 3.9]"),
    ] = None

    def shape(self, name_parts: dict[str, str] | None = None, packed: bool = False) -> Experts | Product:
        """Return the layer on one rank.

        `name_parts` are the fields of a file's name. `packed`: N in the name is half the size, as in SGLang.
        """
        from anatune.files import read_file
        from anatune.servers.shapes import Experts, Product, divide_over_ranks, model_experts

        name_parts = name_parts or {}
        block = self._block() or _block_of(name_parts)
        dtype = self.dtype or name_parts.get("dtype") or ("auto" if "experts" in name_parts else None)
        n, k = self.n or _size_in_name(name_parts, "rows"), self.k or _size_in_name(name_parts, "k")
        self._check_words(name_parts, "rows" in name_parts if name_parts else bool(n or k))
        if n and k:
            return Product(n, k, dtype or "fp8_w8a8", block or (128, 128))
        ranks, top_k, hidden, group = self._ranks(), self.top_k, self.hidden, self.group_size
        if self.model is not None:
            split = (1, 1) if name_parts else (ranks, self.ep)
            file = self.model / "config.json" if self.model.is_dir() else self.model
            model_shape = model_experts(read_file(file), str(file), *split, dtype)
            group = model_shape.group if group is None else group
            if not name_parts:
                return msgspec.structs.replace(model_shape, block=block or model_shape.block, group=group)
            top_k, hidden = model_shape.top_k, model_shape.hidden
        sizes = {
            "experts": self.experts or (_size_in_name(name_parts, "experts") or 0) * self.ep,
            "intermediate": self.intermediate or (_size_in_name(name_parts, "n") or 0) * ranks * (1 + packed),
        }
        if not (all(sizes.values()) and hidden and top_k):
            raise UsageError(
                "the layer is missing; give --model FILE, or --experts --intermediate --hidden --top-k, or --n --k"
                if not name_parts else "the file's name contains no hidden size; add --hidden and --top-k, or --model"
            )  # fmt: skip
        sizes = divide_over_ranks(sizes, ranks, self.ep)
        return Experts(
            **sizes, hidden=hidden, top_k=top_k, dtype=dtype or "auto", block=block, group=group or 0, ranks=self.ep
        )

    def _check_words(self, name_parts: dict[str, str], is_product: bool) -> None:
        """Raise UsageError for options that would be ignored, because of the file's name or the kind of layer."""
        if is_product and not name_parts and not (self.n and self.k):
            raise UsageError("--n and --k are both sizes of the weights; give both, without --model and --experts")
        reason_by_option = {}
        if is_product:
            others = ("model", *_SIZES, "tp", "ep", "group_size", "power_law")
            reason_by_option = dict.fromkeys(others, "is for experts, but the layer is a product; leave it out")
        elif self.model is not None:
            reason_by_option = dict.fromkeys(_SIZES, "is part of --model; leave one of them out")
        if name_parts:
            options_in_name = ("experts", "intermediate", "n", "k", "dtype", "block_shape")
            reason_by_option |= dict.fromkeys(options_in_name, "is in the file's name; leave it out")
        for name, reason in reason_by_option.items():
            if (given := getattr(self, name)) is not None and (name, given) != ("ep", 1):
                raise UsageError(f"--{name.replace('_', '-')} {reason}")

    def _ranks(self) -> int:
        """Return the number of ranks over which each expert is split."""
        if self.tp is not None and self.tp % self.ep:
            raise UsageError(f"--tp {self.tp} is not a multiple of --ep {self.ep}, the ranks that share the experts")
        return (self.tp or self.ep) // self.ep

    def check_server(self, server: Server) -> None:
        """Raise UsageError for ranks that the server does not support."""
        if server == "vllm" and self.ep > 1 and self._ranks() > 1:
            raise UsageError(
                f"--ep is {self.ep} and --tp is {self.tp}, but vLLM distributes experts over all ranks "
                "(--enable-expert-parallel) or none; give both one value, or --ep 1"
            )

    def _block(self) -> tuple[int, int] | None:
        if self.block_shape is None:
            return None
        from anatune.servers.shapes import check_size

        sizes = self.block_shape.strip("[] ").split(",")
        if len(sizes) != 2:
            raise UsageError(f"--block-shape is {quote(self.block_shape)}, expected two sizes such as 128,128")
        return check_size("--block-shape", sizes[0]), check_size("--block-shape", sizes[1])


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options for the written files."""

    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write.")]
    rows: Annotated[
        str | None,
        _text("--rows", "M,M,..", "Numbers of rows (tokens) of the entries.  [default: those in servers' files]"),
    ] = None
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", metavar="N", min=0, max=1024, help="Also list the N best tiles of each entry in a file."
        ),
    ] = None
    device_name: Annotated[
        str | None, _text("--device-name", "NAME", "The device's name as its driver prints it, if anatune lacks it.")
    ] = None
    against: Annotated[
        Path | None,
        _text("--against", "FILE", "A server's tuned file to compare with.  [default: of an installed server]"),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Write a file even if its gain is small or the server has a tuned one.")
    ] = False

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of rows."""
        from anatune.servers.choose import ROWS
        from anatune.servers.shapes import MOST_ROWS, check_size

        if self.rows is None:
            return ROWS
        return tuple(sorted({check_size("--rows", word.strip(), MOST_ROWS) for word in self.rows.split(",")}))


class ServerRunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options for measuring and output."""

    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the --keep (8) best tiles of each entry on a GPU here.")
    ] = False
    records: Annotated[
        Parsed, records_option("Records of --measure.  [default: anatune-configs.sqlite in FOLDER]", show_default=False)
    ] = None
    device: Annotated[int | None, typer.Option("--device", metavar="N", min=0, help="GPU number.  [default: 0]")] = None
    backend: Backend = None
    html: Html = None
    as_json: AsJson = False

    def measuring(self, keep: int | None) -> MeasureOptions | None:
        """Return the options for measuring the tiles of --keep, or None without --measure."""
        if self.measure and keep == 0:
            raise UsageError("--measure measures the tiles of --keep, but --keep is 0; give --keep 1 or more")
        if not self.measure:
            given = {"--records": self.records, "--device": self.device, "--backend": self.backend}
            for name, value in given.items():
                if value is not None:
                    raise UsageError(f"{name} needs --measure; add it, or leave {name} out")
            return None
        from anatune.servers.measuring import MeasureOptions

        return MeasureOptions(self.records, self.device or 0, self.backend)


@app.command("vllm", cls=Grouped)
@spread
def vllm(layer: LayerOptions, writing: OutputOptions, run: ServerRunOptions, hw: Device) -> None:
    """Write the tile sizes of a layer's kernels on a GPU to files that vLLM reads."""
    _write("vllm", layer, writing, run, hw)


@app.command("sglang", cls=Grouped)
@spread
def sglang(
    layer: LayerOptions,
    writing: OutputOptions,
    run: ServerRunOptions,
    hw: Device,
    down: Annotated[bool, typer.Option("--down", help="Also write a file for the down product.")] = False,
) -> None:
    """Write the tile sizes of a layer's kernels on a GPU to files that SGLang reads."""
    _write("sglang", layer, writing, run, hw, down=down)


@app.command("check", cls=Grouped)
@spread
def check(
    layer: LayerOptions,
    hw: Device,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of a server, whose name describes the layer.")],
    as_json: AsJson = False,
) -> None:
    """Compare the predicted time of each entry of a file with that of the best tile."""
    from anatune.servers.judging import check_file
    from anatune.servers.names import folder_version, parse_name
    from anatune.servers.report import judged_lines

    name_parts = parse_name(file.name)
    of_sglang = folder_version(file.resolve().parent.name)
    shape = layer.shape(name_parts, name_parts.get("dtype") == "int4_w4a16" and of_sglang is not None)
    judged = check_file(file, shape, _gpu(hw), layer.power_law, layer.triton_version or of_sglang)
    if as_json:
        print_json(judged)
    else:
        print_lines(judged_lines(judged, line_width(), shape))


def _write(
    server: Server, layer: LayerOptions, writing: OutputOptions, run: ServerRunOptions, hw: str, *, down: bool = False
) -> None:
    from anatune.servers.files import ConfigRequest, write_configs
    from anatune.servers.report import written_lines
    from anatune.servers.shapes import Experts

    layer.check_server(server)
    shape, measuring = layer.shape(), run.measuring(writing.keep)
    if server == "sglang" and isinstance(shape, Experts) and layer.triton_version is None:
        raise UsageError("--triton-version is missing: SGLang's folders are named by the server's triton.__version__")
    if down and not isinstance(shape, Experts):
        raise UsageError("--down is for experts; leave it out with --n and --k")
    spec, page_file = _gpu(hw), check_html(run.html, layer.model, run.records)
    keep = writing.keep or (_KEPT if run.measure else 0)
    request = ConfigRequest(
        server, spec, (shape,), writing.numbers(), keep, writing.device_name, layer.triton_version, down,
        layer.power_law, writing.against, writing.force,
    )  # fmt: skip
    with Progress() as progress:
        written = write_configs(
            request, writing.output, progress.count("numbers of rows"),
            measuring=measuring, on_kernel=progress.count("kernels"),
        )  # fmt: skip
    if run.as_json:
        print_json({"written": written, "notes": request.notes()})
    else:
        print_lines(written_lines(request, writing.output, written, line_width()))
    if page_file is not None:
        from anatune.servers.page import configs_page

        write_page(configs_page(request, written), page_file)


def _gpu(name: str) -> GpuSpec:
    from anatune import api
    from anatune.core.hardware.spec import GpuSpec
    from anatune.errors import SpecError

    spec = api.hardware(name)
    if not isinstance(spec, GpuSpec):
        raise SpecError(f"--hw {name}: {spec.name} is not a GPU, expected the GPU of a server, such as h100_sxm")
    return spec


def _size_in_name(name_parts: dict[str, str], name: str) -> int | None:
    from anatune.servers.shapes import MOST_EXPERTS, MOST_SIZE, check_size

    most = MOST_EXPERTS if name == "experts" else MOST_SIZE
    return check_size(f"{name} of the file's name", name_parts[name], most) if name in name_parts else None


def _block_of(name_parts: dict[str, str]) -> tuple[int, int] | None:
    rows, depth = _size_in_name(name_parts, "block_n"), _size_in_name(name_parts, "block_k")
    return (rows, depth) if rows and depth else None
