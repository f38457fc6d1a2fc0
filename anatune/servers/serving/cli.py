"""The command ``anatune serving``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from typer.models import OptionInfo

from anatune.arguments import quote
from anatune.cli.options import AsJson, Html, parse_prices, spread
from anatune.cli.output import UsageError, line_width, print_json, print_lines
from anatune.cli.outputs import check_html, write_page
from anatune.cli.progress import Progress

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def _parse_numbers(name: str, text: str) -> list[int]:
    """Return the numbers of a list such as 1,2,4,8."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise UsageError(f"{name} is {quote(text)}, expected numbers from 1 on, separated by commas, as 1,2,4,8")
    return list(dict.fromkeys(map(int, parts)))


def _parse_duration(name: str, text: str | None) -> float | None:
    """Return the seconds of a duration such as 500ms."""
    if text is None:
        return None
    digits = text.strip().rstrip("mus")
    unit = text.strip()[len(digits) :]
    try:
        seconds = float(digits) * _UNITS[unit]
    except (ValueError, KeyError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{name} is {quote(text)}, expected a duration as 500ms or 0.5s")
    return seconds


def _option(name: str, metavar: str, help: str) -> OptionInfo:
    option: OptionInfo = typer.Option(name, metavar=metavar, help=help)
    return option


class ServingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that describe devices, their division, the load and the weights."""

    hw: Annotated[str, _option("--hw", "NAME|FILE,...", "Devices: names from `anatune hw list`, or spec files.")]
    tp: Annotated[str, _option("--tp", "N,...", "Numbers of devices that divide each layer.")] = "1"
    isl: Annotated[int, _option("--isl", "N", "Tokens of a prompt.")] = 1024
    osl: Annotated[int, _option("--osl", "N", "Tokens that a request makes.")] = 512
    concurrency: Annotated[str, _option("--concurrency", "N,...", "Numbers of requests in flight.")] = "1,8,32,128"
    precision: Annotated[
        str | None,
        _option(
            "--precision",
            "NAME",
            "Weights: bfloat16, fp8, fp8_block, int8, int4, nvfp4 or mxfp4.  [default: the file's]",
        ),
    ] = None
    cache: Annotated[Literal["bfloat16", "fp8"], typer.Option("--cache", help="Keys and values in the cache.")] = (
        "bfloat16"
    )
    expert_parallel: Annotated[
        bool, typer.Option("--expert-parallel", help="Distribute whole experts over the devices of --tp.")
    ] = False
    engine: Annotated[
        Literal["trtllm", "vllm", "sglang"] | None,
        typer.Option("--engine", help="Schedule prompts as it does, and add its host's time to each step."),
    ] = None
    price: Annotated[list[str] | None, _option("--price", "NAME=AMOUNT", "An hour's price; once for each device.")] = (
        None
    )
    ttft: Annotated[str | None, _option("--ttft", "DURATION", "Limit of the time to the first token, as 500ms.")] = None
    tpot: Annotated[str | None, _option("--tpot", "DURATION", "Limit of the time per output token, as 20ms.")] = None

    def limits(self) -> tuple[float | None, float | None]:
        """Return the most seconds to the first token, and per output token."""
        return _parse_duration("--ttft", self.ttft), _parse_duration("--tpot", self.tpot)


@spread
def serving(
    config: Annotated[
        Path, typer.Argument(metavar="FILE|FOLDER", help="config.json of a Hugging Face model, or its folder.")
    ],
    options: ServingOptions,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Predict latency, throughput, memory and price of a server of a language model. No device is needed."""
    from anatune.servers.serving.config import read_decoder
    from anatune.servers.serving.engines import find_engine
    from anatune.servers.serving.predict import serving as predict
    from anatune.servers.serving.report import serving_dict, serving_lines

    names = [name.strip() for name in options.hw.split(",")]
    prices, limits = parse_prices(options.price, names), options.limits()
    divisions = _parse_numbers("--tp", options.tp)
    counts = _parse_numbers("--concurrency", options.concurrency)
    page_file, engine = check_html(html, config), find_engine(options.engine)
    decoder = read_decoder(config, options.precision)
    with Progress() as progress:
        rows = predict(
            config, names, tp=divisions, isl=options.isl, osl=options.osl, concurrency=counts,
            precision=options.precision, cache=options.cache, expert_parallel=options.expert_parallel,
            engine=options.engine, prices=prices, progress=progress.count("predictions"),
        )  # fmt: skip
    if page_file is not None:
        from anatune.servers.serving.page import serving_page

        write_page(serving_page(rows, decoder, engine), page_file)
    if as_json:
        print_json(serving_dict(rows, decoder, limits))
        return
    print_lines(serving_lines(rows, decoder, engine, limits, width=line_width()))
