"""Mutated lines of other tuners' logs: a line is imported or counted, whatever stands in it; nothing is raised."""

import copy
import json
import random

import pytest

import anatune
from anatune.adapters.logs import read_foreign
from anatune.adapters.logs.recording import record_foreign
from anatune.errors import RecordError
from anatune.records.store import RecordStore
from tests.unit.adapters.logs.making import ansor, autotvm, kernel_tuner, metaschedule, old_autotvm, task, tensor

DENSE = {"tile_y": [4, 2, 8], "tile_x": [2, 2, 32], "tile_k": [64, 2], "tile_inner": [64, 1]}
BASES = [
    autotvm(), old_autotvm(), old_autotvm(when=1.57e9), ansor(), metaschedule(),
    task("dense_pack.x86", "llvm", [tensor(64, 128), tensor(128, 128), None, "float32"], DENSE),
    {"kernel_name": "Xgemm", "device_name": "NVIDIA GeForce RTX 3090", "cache": {"a": kernel_tuner(), "b": {}}},
    {"results": [{"configuration": kernel_tuner(), "measurements": [{"name": "time", "value": 1.0, "unit": "ms"}]}]},
]  # fmt: skip
VALUES = [None, 0, -1, 1, 2**63, 10**30, 1e308, "", "cuda -model=tx2", [], {}, [[]], True, "float32", [1, 2, 3], -0.5]
HARDWARE = [None, *map(anatune.hardware, ("rtx3090", "xeon_8124m", "mi50"))]
WORKLOADS = [None, anatune.matmul(64, 64, 64), anatune.conv2d(4, 8, 14, 14, 16, 3, 3, padding=1)]


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from places(one, (*path, key))


def mutated(entry, rng):
    entry = copy.deepcopy(entry)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        path = rng.choice(list(places(entry))[1:] or [()])
        if not path:
            continue
        parent = entry
        for key in path[:-1]:
            parent = parent[key]
        if rng.random() < 0.7:
            parent[path[-1]] = copy.deepcopy(rng.choice(VALUES))
        else:
            del parent[path[-1]]
    return entry


@pytest.mark.parametrize("seed", range(4))
def test_every_line_is_imported_or_counted(tmp_path, seed):
    rng = random.Random(seed)
    path, imported = tmp_path / "log.json", 0
    told: list[str] = []
    with RecordStore(tmp_path / "r.sqlite") as store:
        for _ in range(150):
            path.write_text(json.dumps(mutated(rng.choice(BASES), rng)))
            try:
                found = read_foreign(path, rng.choice(HARDWARE), rng.choice(WORKLOADS))
                record_foreign(store, found, path)
            except RecordError as error:
                told.append(str(error))
                continue
            assert len(found.trials) + sum(found.left_out.values()) <= 2
            imported += len(found.trials)
        assert 0 < len(store.trials()) <= imported
    assert not any("\n" in text for text in told)
