"""Compare predicted times of servers of language models with those that others measured.

    python -m bench.replay.servers FOLDER [--rows N] [--half odd|even] [--fit]

FOLDER holds serving_aiconfigurator__apache2.csv.gz: closed loops of so many requests in flight on TensorRT-LLM, vLLM
and SGLang. Rows are left out whose devices share no layers alone (attention_dp, or a name with other requests in flight
than batch_size), which have more than 8 devices, whose requests do not fit the memory that we predict, whose model has
no sizes in serving_models.json (from the models' published config.json), which predict several tokens at once
(`_SPECULATIVE`), or which repeat another. --rows takes so many of each model, engine and device. --fit prints what the
host of each engine adds to a step in the chosen half: the median of (measured - predicted) over the iterations of a
token.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import anatune
from anatune.errors import AnatuneError
from anatune.servers.serving.config import Decoder, parse_decoder
from anatune.servers.serving.division import Parallelism, cache_bytes, check_division, weight_bytes
from anatune.servers.serving.engines import ENGINES
from anatune.servers.serving.iteration import IterationTimes
from anatune.servers.serving.load import ServerLoad, steady_times
from anatune.servers.serving.predict import count_fitting
from anatune.servers.serving.times import KernelTimes
from bench.replay.metrics import spearman
from bench.replay.tensorcores_tables import in_half, sample_of

TABLE = "serving_aiconfigurator__apache2.csv.gz"
DEVICES = {"h100_sxm": "h100_sxm", "h200_sxm": "h200", "b200_sxm": "b200"}
MODELS = json.loads((Path(__file__).parent / "serving_models.json").read_text())
FORMATS = {"fp8": "fp8", "nvfp4": "nvfp4", "int4_wo": "int4"}
"""The table's names of formats -> precisions; without a name: 16 bits."""
_SPECULATIVE = ("trtllm", "1.2.0rc6.post3", "deepseek-ai/DeepSeek-R1")
"""The engine, version and model of rows that predict several tokens at once. Source: InferenceX, which measured them,
used this image for nothing else (SemiAnalysisAI/InferenceX, pull requests 1488 and 1489). Images for both, such as
SGLang's 0.5.9, stay."""
_DRAWN = 0.9
"""InferenceX draws lengths from 0.8 to 1.0 of those in the table; the mean. Source: its random-range-ratio."""
_SMALL_CACHE = ("deepseek-ai/DeepSeek-R1", "openai/gpt-oss-120b")
"""The models whose caches InferenceX keeps in fp8 on a B200. Source: its benchmarks' scripts of 2026-02."""
FEW = 8
"""The most requests in flight at which times to the first token are compared."""


def precision_of(row: Any) -> str:
    """Return the number format of the weights that a row's model has."""
    if "gpt-oss" in row.model_path:
        return "mxfp4"  # the published weights; the table names the format of other models
    word = FORMATS.get(row.gemm_quant_mode, "bfloat16")
    is_blocked = word == "fp8" and any(name in row.model_path for name in ("DeepSeek", "MiniMax"))
    return "fp8_block" if is_blocked else word


def rows_of(folder: Path, number: int, half: str) -> pd.DataFrame:
    """Return the rows that are compared."""
    table = pd.read_csv(folder / TABLE)
    table = table[~table.drop(columns="id").duplicated()]
    speculative = table[["backend", "backend_version", "model_path"]].apply(tuple, axis=1) == _SPECULATIVE
    named = table.id.str.extract(r"_c(\d+)_")[0].astype(float)
    table = table[~speculative & (named.isna() | (named == table.batch_size))]
    table = table[table.model_path.isin(MODELS) & table.system.isin(DEVICES) & (table.tp_size <= 8)]
    table = table[table.attention_dp_size.fillna(1.0) == 1.0]
    table = table[[in_half(half, name) for name in table.id]]
    groups = table.groupby(["model_path", "backend", "system", "gemm_quant_mode"], dropna=False)
    return pd.concat([group.iloc[sample_of(len(group), number, 0)] for _, group in groups])


def predictions(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield model, family, engine, device and the measured and predicted seconds of each row."""
    kernels = {system: KernelTimes(anatune.hardware(name)) for system, name in DEVICES.items()}
    kept: dict[tuple[Any, ...], IterationTimes] = {}
    for row in table.itertuples():
        tp, precision = int(row.tp_size), precision_of(row)
        division = Parallelism(tp, tp if row.moe_ep_size == tp else 1)
        engine = ENGINES[row.backend]
        drawn = 1.0 if "epnone" in row.id else _DRAWN
        load = ServerLoad(round(drawn * row.isl), round(drawn * row.osl), int(row.batch_size))
        cache = "fp8" if row.system == "b200_sxm" and row.model_path in _SMALL_CACHE else "bfloat16"
        key = (row.model_path, precision, row.system, division)
        name = row.model_path.rpartition("/")[2]
        try:
            if key not in kept:
                decoder = parse_decoder(json.dumps(MODELS[row.model_path]).encode(), name, precision)
                check_division(decoder, division)
                kept[key] = IterationTimes(decoder, division, kernels[row.system], cache)
            times = kept[key]
            if _count_fitting(times.decoder, division, kernels[row.system], load) < load.in_flight:
                continue
            steady = steady_times(times, load, engine._replace(host_s=0.0))
            hosted = steady_times(times, load, engine)
        except AnatuneError as error:
            print(f"left out: {name}, {row.system}, {tp} devices: {error}")
            continue
        yield {
            "model": name, "family": "experts" if times.decoder.has_experts else "dense", "engine": row.backend,
            "device": row.system, "precision": precision, "tp": tp, "isl": int(row.isl), "osl": int(row.osl),
            "in_flight": load.in_flight, "measured_s": row.silicon_tpot_ms / 1e3, "pure_s": steady.tpot_s,
            "predicted_s": hosted.tpot_s, "ttft_s": row.silicon_ttft_ms / 1e3, "first_s": hosted.ttft_s,
            "burst_s": hosted.burst_ttft_s, "is_drawn": drawn < 1.0,
            "steps": 1 + (load.in_flight - 1) / load.osl * (not engine.mixes),
        }  # fmt: skip


def _count_fitting(decoder: Decoder, division: Parallelism, times: KernelTimes, load: ServerLoad) -> int:
    weights = weight_bytes(decoder, division)
    request = cache_bytes(decoder, division, load.isl + load.osl, 2.0)
    return count_fitting(decoder, division, times.spec, weights, request) or load.in_flight


def print_errors(rows: pd.DataFrame, by: list[str]) -> None:
    """Print a line for each group: predicted over measured times per output token, without and with the host's time."""
    print(f"| {', '.join(by)} | rows | ratio | error | within 20 % | with host: ratio | error | within 20 % | rank |")
    print("|---" * 9 + "|")
    for key, group in rows.groupby(by):
        cells = []
        for column in ("pure_s", "predicted_s"):
            ratio = group[column] / group.measured_s
            error = (ratio - 1).abs()
            spread = f"{ratio.median():.2f} ({ratio.quantile(0.1):.2f} to {ratio.quantile(0.9):.2f})"
            cells.append(f"{spread} | {100 * error.median():.0f} % | {100 * (error <= 0.2).mean():.0f} %")
        rank = spearman(group.pure_s, group.measured_s)
        print(f"| {' '.join(map(str, key))} | {len(group)} | {' | '.join(cells)} | {rank:.3f} |")


def print_first(rows: pd.DataFrame) -> None:
    """Print the errors of the time to the first token with few requests in flight.

    Equal requests begin and end together. InferenceX's have drawn lengths, and ten for each in flight: a tenth begins
    together.
    """
    few = rows[rows.in_flight <= FEW]
    together = np.where(few.is_drawn, 0.1, 1.0)
    few = few.assign(mean_s=together * few.burst_s + (1.0 - together) * few.first_s)
    print("\n| family, engine | rows | alone: ratio | error | as measured: ratio | error |\n" + "|---" * 6 + "|")
    for key, group in few.groupby(["family", "engine"]):
        cells = []
        for column in ("first_s", "mean_s"):
            ratio = group[column] / group.ttft_s
            cells.append(f"{ratio.median():.2f} | {100 * (ratio - 1).abs().median():.0f} %")
        print(f"| {' '.join(key)} | {len(group)} | {' | '.join(cells)} |")


def main() -> None:
    """Read the table and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=0, help="of each model, engine and device; 0: all")
    parser.add_argument("--half", choices=("all", "odd", "even"), default="all")
    parser.add_argument("--fit", action="store_true")
    chosen = parser.parse_args()
    rows = pd.DataFrame(predictions(rows_of(chosen.folder, chosen.rows, chosen.half)))
    for by in (["family"], ["family", "engine"], ["family", "device"], ["model", "engine", "device", "precision"]):
        print_errors(rows, by)
        print()
    print_first(rows)
    error = np.log(rows.predicted_s / rows.measured_s).abs()
    print("\nthe worst ten:\n")
    for row in rows.loc[error.sort_values(ascending=False).index[:10]].itertuples():
        print(
            f"- {row.model} {row.precision} on {row.tp} x {row.device}, {row.engine}, {row.isl} in, {row.osl} out, "
            f"{row.in_flight} in flight: {1e3 * row.predicted_s:.1f} for {1e3 * row.measured_s:.1f} ms"
        )
    if chosen.fit:
        for engine, group in rows[rows.family == "dense"].groupby("engine"):
            print(f"{engine}: {((group.measured_s - group.pure_s) / group.steps).median():.2e} s a step")


if __name__ == "__main__":
    main()
