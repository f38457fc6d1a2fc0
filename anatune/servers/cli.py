"""``anatune configs``: the files of tile configurations that vLLM and SGLang look for, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anatune.arguments import shown
from anatune.cli.options import AsJson, Backend, Device, Html, Parsed, records_option, spread
from anatune.cli.output import UsageError, line_width, print_json, print_lines
from anatune.cli.outputs import check_html, write_page
from anatune.cli.panels import Grouped, subcommands
from anatune.cli.progress import Progress

if TYPE_CHECKING:
    from anatune.core.hardware.spec import GpuSpec
    from anatune.servers.measuring import Measuring
    from anatune.servers.names import Server
    from anatune.servers.shapes import Experts, Product

_SIZES = ("experts", "intermediate", "hidden", "top_k")
_KEPT = 8
"""Tiles that --measure runs where --keep says nothing."""

app = subcommands(
    "Write the files of tile configurations that servers look for, or judge one. Only --measure needs a GPU."
)


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """Which layer, split over how many ranks."""

    model: Annotated[
        Path | None, typer.Option("--model", metavar="FILE|FOLDER", help="config.json of Hugging Face, or its folder.")
    ] = None
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
    tp: Annotated[
        int | None,
        typer.Option("--tp", min=1, max=1 << 10, help="Tensor-parallel ranks, as the server has it.  [default: --ep]"),
    ] = None
    ep: Annotated[
        int, typer.Option("--ep", min=1, max=1 << 10, help="Of these, ranks that experts are spread over.")
    ] = 1
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", help="auto (16 bits), fp8_w8a8, int8_w8a8, int8_w8a16, int4_w4a16.  [default: the model's, auto]"
        ),
    ] = None
    group_size: Annotated[
        int | None,
        typer.Option(
            "--group-size", min=0, max=1 << 10, help="Weights of 4 or 8 bits along k that share a scale: 32 to 128."
        ),
    ] = None
    block_shape: Annotated[
        str | None, typer.Option("--block-shape", metavar="N,K", help="Of weights that share a scale: 128,128.")
    ] = None
    power_law: Annotated[
        float | None,
        typer.Option("--power-law", min=0.0, max=8.0, help="Exponent of the experts' popularity; left out: at random."),
    ] = None

    triton_version: Annotated[
        str | None,
        typer.Option("--triton-version", metavar="X.Y.Z", help="The server's; sglang needs it.  [default: 3.9]"),
    ] = None

    def shape(self, known: dict[str, str] | None = None, packed: bool = False) -> Experts | Product:
        """Return the layer on one rank; `known`: what a file's name says already, `packed`: as SGLang counts its N."""
        from anatune.files import read_file
        from anatune.servers.shapes import Experts, Product, model_experts, on_a_rank

        known = known or {}
        block = self._block() or _block_of(known)
        dtype = self.dtype or known.get("dtype") or ("auto" if "experts" in known else None)
        n, k = self.n or _number(known, "rows"), self.k or _number(known, "k")
        self._check_words(known, "rows" in known if known else bool(n or k))
        if n and k:
            return Product(n, k, dtype or "fp8_w8a8", block or (128, 128))
        ranks, top_k, hidden, group = self._ranks(), self.top_k, self.hidden, self.group_size
        if self.model is not None:
            split = (1, 1) if known else (ranks, self.ep)
            file = self.model / "config.json" if self.model.is_dir() else self.model
            found = model_experts(read_file(file), str(file), *split, dtype)
            group = found.group if group is None else group
            if not known:
                return msgspec.structs.replace(found, block=block or found.block, group=group)
            top_k, hidden = found.top_k, found.hidden
        sizes = {
            "experts": self.experts or (_number(known, "experts") or 0) * self.ep,
            "intermediate": self.intermediate or (_number(known, "n") or 0) * ranks * (1 + packed),
        }
        if not (all(sizes.values()) and hidden and top_k):
            raise UsageError(
                "which layer? Say --model CONFIG.json, or --experts --intermediate --hidden --top-k, or --n --k"
                if not known else "the file's name does not tell --hidden and --top-k (or --model); say them"
            )  # fmt: skip
        sizes = on_a_rank(sizes, ranks, self.ep)
        return Experts(
            **sizes, hidden=hidden, top_k=top_k, dtype=dtype or "auto", block=block, group=group or 0, ranks=self.ep
        )

    def _check_words(self, known: dict[str, str], is_product: bool) -> None:
        """Raise UsageError for options that would not be heeded: `known` says it, or they are another layer's."""
        if is_product and not known and not (self.n and self.k):
            raise UsageError("--n and --k go together: the weights of a product, without --model and --experts")
        why = {}
        if is_product:
            others = ("model", *_SIZES, "tp", "ep", "group_size", "power_law")
            why = dict.fromkeys(others, "is for experts, and the layer is a product; leave it out")
        elif self.model is not None:
            why = dict.fromkeys(_SIZES, "goes without --model, which says it; leave one of them out")
        if known:
            told = ("experts", "intermediate", "n", "k", "dtype", "block_shape")
            why |= dict.fromkeys(told, "is in the file's name; leave it out")
        for name, reason in why.items():
            if (given := getattr(self, name)) is not None and (name, given) != ("ep", 1):
                raise UsageError(f"--{name.replace('_', '-')} {reason}")

    def _ranks(self) -> int:
        """Return the ranks that each expert is split over."""
        if self.tp is not None and self.tp % self.ep:
            raise UsageError(
                f"--tp {self.tp} does not divide by --ep {self.ep}: experts are spread over some of its ranks"
            )
        return (self.tp or self.ep) // self.ep

    def check_server(self, server: Server) -> None:
        """Raise UsageError for ranks that a server does not have."""
        if server == "vllm" and self.ep > 1 and self._ranks() > 1:
            raise UsageError(
                f"--ep is {self.ep} of --tp {self.tp}, but vLLM spreads experts over all ranks "
                "(--enable-expert-parallel) or over none; say both alike"
            )

    def _block(self) -> tuple[int, int] | None:
        if self.block_shape is None:
            return None
        from anatune.servers.shapes import checked_size

        sizes = self.block_shape.strip("[] ").split(",")
        if len(sizes) != 2:
            raise UsageError(f"--block-shape is {shown(self.block_shape)}, expected two sizes such as 128,128")
        return checked_size("--block-shape", sizes[0]), checked_size("--block-shape", sizes[1])


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """Where files go, and what they hold."""

    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the files go.")]
    rows: Annotated[
        str | None, typer.Option("--rows", metavar="M,M,..", help="Entries of a file.  [default: servers' usual ones]")
    ] = None
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", metavar="N", min=0, max=1024, help="Also list the N tiles that deserve a run.  [default: 0]"
        ),
    ] = None
    device_name: Annotated[
        str | None, typer.Option("--device-name", metavar="NAME", help="As the driver says it, where it is not known.")
    ] = None

    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="The server's tuned file.  [default: of a server that is here]"),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Write also what gains less than 5 %, or replaces a tuned file.")
    ] = False

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of rows."""
        from anatune.servers.choose import ROWS
        from anatune.servers.shapes import MOST_ROWS, checked_size

        if self.rows is None:
            return ROWS
        return tuple(sorted({checked_size("--rows", word.strip(), MOST_ROWS) for word in self.rows.split(",")}))


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Whether tiles are measured, through what, and what is made of it."""

    measure: Annotated[
        bool, typer.Option("--measure", help="Run the tiles of --keep (8) here, and write the fastest.")
    ] = False
    records: Annotated[
        Parsed,
        records_option("Keeps what was measured.  [default: anatune-configs.sqlite in FOLDER]", show_default=False),
    ] = None
    device: Annotated[
        int | None,
        typer.Option("--device", metavar="N", min=0, help="Number of the GPU, as CUDA counts.  [default: 0]"),
    ] = None
    backend: Backend = None
    html: Html = None
    as_json: AsJson = False

    def measuring(self, keep: int | None) -> Measuring | None:
        """Return how the tiles of --keep are measured; None: they are not."""
        if self.measure and keep == 0:
            raise UsageError("--keep is 0, but --measure runs the tiles that it counts; say --keep 1 or more")
        if not self.measure:
            given = {"--records": self.records, "--device": self.device, "--backend": self.backend}
            for name, value in given.items():
                if value is not None:
                    raise UsageError(f"{name} goes with --measure; say it, or leave {name} out")
            return None
        from anatune.servers.measuring import Measuring

        return Measuring(self.records, self.device or 0, self.backend)


@app.command("vllm", cls=Grouped)
@spread
def vllm(layer: Layer, writing: Writing, run: Run, hw: Device) -> None:
    """Write the files that vLLM looks for."""
    _write("vllm", layer, writing, run, hw)


@app.command("sglang", cls=Grouped)
@spread
def sglang(
    layer: Layer,
    writing: Writing,
    run: Run,
    hw: Device,
    down: Annotated[bool, typer.Option("--down", help="A file of its own for the down product.")] = False,
) -> None:
    """Write the files that SGLang looks for."""
    _write("sglang", layer, writing, run, hw, down=down)


@app.command("check", cls=Grouped)
@spread
def check(
    layer: Layer,
    hw: Device,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A server's file; its name says the layer.")],
    as_json: AsJson = False,
) -> None:
    """Say how far the model thinks each entry of a file is from its best."""
    from anatune.servers.judging import check_file
    from anatune.servers.names import folder_version, parse_name
    from anatune.servers.report import judged_lines

    known = parse_name(file.name)
    of_sglang = folder_version(file.resolve().parent.name)
    shape = layer.shape(known, known.get("dtype") == "int4_w4a16" and of_sglang is not None)
    judged = check_file(file, shape, _gpu(hw), layer.power_law, layer.triton_version or of_sglang)
    if as_json:
        print_json(judged)
    else:
        print_lines(judged_lines(judged, line_width(), shape))


def _write(server: Server, layer: Layer, writing: Writing, run: Run, hw: str, *, down: bool = False) -> None:
    from anatune.servers.files import Request, write_configs
    from anatune.servers.report import written_lines
    from anatune.servers.shapes import Experts

    layer.check_server(server)
    shape, measuring = layer.shape(), run.measuring(writing.keep)
    if server == "sglang" and isinstance(shape, Experts) and layer.triton_version is None:
        raise UsageError(
            "--triton-version is missing: SGLang's folders are named by what triton.__version__ says there"
        )
    if down and not isinstance(shape, Experts):
        raise UsageError("--down goes with experts; leave it out for --n and --k")
    spec, page_file = _gpu(hw), check_html(run.html, layer.model, run.records)
    keep = writing.keep or (_KEPT if run.measure else 0)
    request = Request(
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
        raise SpecError(f"--hw {name}: {spec.name} is no GPU, expected one that a server runs on, such as h100_sxm")
    return spec


def _number(known: dict[str, str], name: str) -> int | None:
    from anatune.servers.shapes import MOST_EXPERTS, MOST_SIZE, checked_size

    most = MOST_EXPERTS if name == "experts" else MOST_SIZE
    return checked_size(f"{name} of the file's name", known[name], most) if name in known else None


def _block_of(known: dict[str, str]) -> tuple[int, int] | None:
    rows, depth = _number(known, "block_n"), _number(known, "block_k")
    return (rows, depth) if rows and depth else None
