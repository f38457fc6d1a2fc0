"""Score the model of collective operations on recorded times of NCCL and of the servers' all-reduce kernels.

    python -m bench.replay.collectives FOLDER

FOLDER holds collectives_*.csv.gz. Sizes there are numbers of elements, and times are milliseconds. Each row's predicted
time stands over the measured one. Rows of experts' dispatch and combination are counted, and not predicted. Kernels
without a CUDA graph ("eager") show the time of their host, and are scored apart.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from anatune.core.hardware.files import hardware
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import UnknownNameError
from anatune.servers.serving.collectives import collective_s, nccl_s

_ELEMENT_BYTES = {"half": 2, "bfloat16": 2, "int8": 1}
_OPERATIONS = {"alltoall": "all_to_all"}
"""Operation of the table -> operation of the model, where its name is another one."""
_STANDS_IN = {"a100_sxm": "a100_sxm_80gb", "gb200": "b200", "gb300": "b200"}
"""System of the table -> spec whose link is the same; GB200 and GB300 have NVLink 5, as B200."""
FITTED = ("h100_sxm",)
"""Systems whose times gave the shares of the bandwidth."""


def read_rows(folder: Path) -> pd.DataFrame:
    """Return the rows of a folder's tables that have a message size, with predicted and measured seconds."""
    paths = sorted(folder.glob("collectives_*.csv.gz"))
    if not paths:
        raise SystemExit(f"{folder}: no collectives_*.csv.gz, expected recorded times; name their folder")
    table = pd.concat([pd.read_csv(path, low_memory=False) for path in paths], ignore_index=True)
    experts = table.message_size.isna()
    print(f"{len(table)} rows, of them {int(experts.sum())} of experts' dispatch and combination, not predicted")
    table = table[~experts & (table.latency > 0)].copy()
    table["family"] = [_family(name, kernel) for name, kernel in zip(table.op_name, table.kernel_source, strict=True)]
    table["num_gpus"] = table.num_gpus.astype(int)
    dtypes = table.nccl_dtype.fillna(table.allreduce_dtype)
    table["size_bytes"] = table.message_size * dtypes.map(_ELEMENT_BYTES)
    specs = {system: _spec(system) for system in table.system.unique()}
    table["predicted_s"] = [
        (nccl_s if kernel == "NCCL" else collective_s)(_OPERATIONS.get(name, name), specs[system], gpus, size)
        for name, kernel, system, gpus, size in zip(
            table.op_name, table.kernel_source, table.system, table.num_gpus, table.size_bytes, strict=True
        )
    ]
    table["ratio"] = table.predicted_s / (table.latency * 1e-3)
    table["error"] = (table.ratio - 1).abs()
    return table


def _family(operation: str, kernel: str) -> str:
    if operation != "all_reduce":
        return "others, NCCL"
    if kernel == "NCCL":
        return "all-reduce, NCCL"
    return "all-reduce, eager" if kernel.endswith("eager") else "all-reduce, servers"


def _spec(system: str) -> GpuSpec:
    spec = hardware(_STANDS_IN.get(system, system))
    if not isinstance(spec, GpuSpec):
        raise UnknownNameError(f"system is {system!r}, which is no GPU; expected a GPU's spec")
    return spec


def scores(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return rows, median ratio, median error and share within 20 % of each group."""
    groups = table.groupby(keys)
    within = groups.error.apply(lambda errors: (errors <= 0.2).mean())
    columns = {
        "rows": groups.size(),
        "ratio": groups.ratio.median(),
        "error": groups.error.median(),
        "within 20 %": within,
    }
    return pd.DataFrame(columns).round(3)


def main() -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    table = read_rows(parser.parse_args().folder)
    table["held_out"] = ~table.system.isin(FITTED)
    for keys in (["family"], ["family", "held_out"], ["family", "system"]):
        print(f"\n{scores(table, keys).to_string()}")
    detail = ["system", "op_name", "kernel_source", "num_gpus"]
    print(f"\n{scores(table, detail).to_string()}")
    worst = table.assign(times=table.ratio.where(table.ratio > 1, 1 / table.ratio)).nlargest(10, "times")
    print(f"\nworst ten\n{worst[[*detail, 'source_version', 'size_bytes', 'latency', 'ratio']].to_string(index=False)}")


if __name__ == "__main__":
    main()
