"""Predictions of servers as text and as data."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.report import units
from anatune.report.text import Line, paragraph, table
from anatune.servers.serving.config import Decoder
from anatune.servers.serving.engines import Engine
from anatune.servers.serving.judged import describe_errors, error_text
from anatune.servers.serving.load import CHUNK
from anatune.servers.serving.predict import USABLE_SHARE, ServingRow

__all__ = ["serving_dict", "serving_lines"]


def serving_dict(
    rows: Sequence[ServingRow], decoder: Decoder, limits: tuple[float | None, float | None]
) -> list[dict[str, object]]:
    """Return the predictions as plain values.

    Parameters
    ----------
    limits : (float, float)
        The most seconds to the first token, and per output token; None: no limit.
    """
    return [
        {
            "hardware": row.hardware, "tp": row.tp, "ep": row.ep, "precision": row.precision, "isl": row.isl,
            "osl": row.osl, "concurrency": row.concurrency, "running": row.running, "fits": row.fits,
            "weight_bytes": row.weight_bytes, "cache_bytes": row.cache_bytes,
            "tpot_s": None if row.refused else row.tpot_s, "ttft_s": None if row.refused else row.ttft_s,
            "burst_ttft_s": None if row.refused else row.burst_ttft_s,
            "tokens_per_s_per_device": row.tokens_per_s, "cost_per_million_tokens": row.cost, "parts": row.parts,
            "measured_error": None if row.refused else error_text(decoder, row.hardware),
            "meets_limits": None if limits == (None, None) else row.meets(*limits),
            "refused": row.refused,
        }
        for row in rows
    ]  # fmt: skip


def serving_lines(
    rows: Sequence[ServingRow],
    decoder: Decoder,
    engine: Engine,
    limits: tuple[float | None, float | None] = (None, None),
    *,
    width: int,
) -> list[Line]:
    """Return a table of the predictions, and what they mean."""
    first = rows[0]
    lines = paragraph(
        f"{decoder.name}: {units.many(decoder.num_layers, 'layer')}, weights in {first.precision}; "
        f"{first.isl} tokens in, {first.osl} out",
        width,
        "bold",
    )
    computed = [row for row in rows if not row.refused]
    if computed:
        has_prices = any(row.cost is not None for row in computed)
        is_limited = limits != (None, None)
        cells = [
            ("device", [row.hardware for row in computed]),
            ("tp", [str(row.tp) for row in computed]),
            ("in flight", [_count_text(row) for row in computed]),
            ("per token", [units.duration(row.tpot_s) for row in computed]),
            ("first token", [units.duration(row.ttft_s) for row in computed]),
            ("in a burst", [units.duration(row.burst_ttft_s) for row in computed]),
            ("tokens/s/GPU", [f"{row.tokens_per_s:.4g}" for row in computed]),
            ("fits", ["?" if row.fits is None else str(row.fits) for row in computed]),
            *([("a million cost", ["" if row.cost is None else f"{row.cost:.3g}" for row in computed])] * has_prices),
            *([("limits", ["met" if row.meets(*limits) else "missed" for row in computed])] * is_limited),
            ("error", [error_text(decoder, row.hardware) for row in computed]),
        ]
        lines += table(cells, ("device", "limits", "error"), width=width)
    for text in dict.fromkeys(row.refused for row in rows if row.refused):
        lines += paragraph(text, width, "yellow")
    if computed:
        lines.append(Line(""))
        for text in explain(computed, engine):
            lines += paragraph(text, width, "dim")
        lines += paragraph(describe_errors(), width, "dim")
    return lines


def explain(rows: Sequence[ServingRow], engine: Engine) -> list[str]:
    """Return what the columns mean, and what the predictions assume."""
    waits = "reads prompts beside the step" if engine.mixes else "stops the step to read a prompt"
    host = f" {engine.title} adds {units.duration(engine.host_s)} to a step, fitted." if engine.host_s else (
        " What an engine's host adds to a step is not counted (--engine)."
    )  # fmt: skip
    texts = [
        "per token: time per output token of a request (TPOT), while the server also reads the prompts of the other "
        f"requests; it {waits}, at most {CHUNK} tokens at once.{host}",
        "first token: time to the first token (TTFT) of a request that waits for no other prompt. in a burst: the mean "
        "if all that are computed at once begin together.",
        "tokens/s/GPU: output tokens a second for each device. fits: requests that "
        f"{100 * USABLE_SHARE:.0f} % of the memory holds beside the weights; in flight 128 (64) means that 64 are "
        "computed at once and the others wait.",
    ]
    if any(row.fits is None for row in rows):
        texts.append("fits ?: the spec does not tell the size of the memory (dram.capacity_bytes).")
    return texts


def _count_text(row: ServingRow) -> str:
    return str(row.concurrency) if row.running == row.concurrency else f"{row.concurrency} ({row.running})"
