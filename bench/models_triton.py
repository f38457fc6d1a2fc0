"""Whole models for matrix units, of devices that are not here: launches, predicted times, all kernels compiled and run.

    python -m bench.models_triton [--models bert_base,...] [--hw h100,b200] [--precision fp8] [--kernels] [--json FILE]

Models are of random weights: torchvision's and transformers' of `cpu/networks.py`, two layers of Llama-3-8B's shape
with the embedding and the head (a prompt of 2,048 tokens; steps of 1, 16 and 64 sequences beside caches of 4,096
tokens) and a block of SDXL's UNet, whose weights lie on PyTorch's meta device. With --kernels machine code is made of
all of a model's kernels, and each planned one runs in Triton's interpreter for a smaller workload
(`compiling.targets.smaller`). Nothing here has run on a GPU.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anatune
from anatune.network.compiling.request import CompileRequest
from anatune.network.compiling.sizes.varying import environments
from anatune.network.compiling.targets.planned import plan_model
from anatune.network.compiling.targets.smaller import shrink_schedule
from anatune.network.compiling.targets.triton import TritonTarget
from anatune.network.relax.frontends import import_model
from bench.cpu.networks import network
from bench.results import environment, write_json

DEVICES = "rtx3090,rtx4090,a100_sxm,h100_sxm,b200,mi300x"
TOKENS, HELD = 2048, 4096
_LAYERS = 2

Asked = tuple[Any, Any, dict[str, Any]]
"""A module, its inputs, and what else `anatune.compare` is told."""


def _network(name: str, batch: int, torch: Any) -> Asked:
    made = network(torch, name)
    inputs = made.example if isinstance(made.example, tuple) else (made.example,)
    return made.module, tuple(one.repeat(batch, *[1] * (one.dim() - 1)) for one in inputs), {}


def _llama(batch: int, torch: Any) -> Asked:
    """Return two layers of Llama-3-8B: a prompt (`batch` 0), or a step beside full caches."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=_LAYERS, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, rope_theta=500000.0, max_position_embeddings=8192,
        use_cache=batch > 0,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).eval().bfloat16()
        if not batch:
            return model, (torch.zeros(1, TOKENS, dtype=torch.long),), {}
        past = [torch.zeros(batch, 8, 9, 128, dtype=torch.bfloat16) for _ in range(2 * _LAYERS)]
        inputs = torch.zeros(batch, 7, dtype=torch.long), *past

    class Step(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, *past: Any) -> Any:
            cache = transformers.DynamicCache()
            for layer in range(_LAYERS):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            out = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
            return out.logits, *(one for layer in out.past_key_values.layers for one in (layer.keys, layer.values))

    count, held = torch.export.Dim("count", min=1, max=HELD), torch.export.Dim("held", min=0, max=HELD)
    more = {
        "dynamic_shapes": ({1: count}, tuple({2: held} for _ in past)),
        "state": {f"output{number + 1}": f"past_{number}" for number in range(2 * _LAYERS)},
        "sizes": {"ids_1": 1},
    }
    return Step().eval(), inputs, more


def _unet(torch: Any) -> Asked:
    from bench import unet

    with torch.device("meta"):
        return unet.Block().eval(), unet.inputs(), {}


MODELS: dict[str, Callable[[Any], Asked]] = {
    "resnet50": functools.partial(_network, "resnet50", 1),
    "resnet50_32": functools.partial(_network, "resnet50", 32),
    "bert_base": functools.partial(_network, "bert_base", 1),
    "bert_base_32": functools.partial(_network, "bert_base", 32),
    "vit_b_16": functools.partial(_network, "vit_b_16", 1),
    "llama3_8b_prompt": functools.partial(_llama, 0),
    **{f"llama3_8b_step_{batch}": functools.partial(_llama, batch) for batch in (1, 16, 64)},
    "sdxl_block": _unet,
}


def measured(asked: Asked, devices: list[str], precision: str, *, kernels: bool) -> list[dict[str, Any]]:
    """Return what a model is on each device."""
    module, inputs, more = asked
    began = time.process_time()
    source = import_model(module, inputs, more.get("sizes"), more.get("dynamic_shapes"), more.get("state")).widen()
    graph = source.graph(environments(source.ranges, source.state)[0])
    reading_s, found = time.process_time() - began, []
    for name in devices:
        spec = anatune.hardware(name)
        assert isinstance(spec, anatune.GpuSpec)
        began = time.process_time()
        target = TritonTarget(spec, CompileRequest(precision=precision))
        planned = plan_model(target, graph, source)
        summary = target.describe(planned)
        row: dict[str, Any] = {
            "device": name, "launches": summary.launches, "predicted_ms": 1e3 * summary.whole_s,
            "weights_gb": summary.weight_bytes / 1e9, "planned": len(summary.kernels), "reading_s": reading_s,
            "planning_s": time.process_time() - began,
        }  # fmt: skip
        if kernels:
            programs = target.programs(planned)
            checks = [anatune.verify(shrink_schedule(kernel.schedule)) for kernel in planned.kernels]
            row |= {"functions": len(programs.kernels), "right": sum(one.ok for one in checks)}
            row["error"] = max((one.max_rel_error or 0.0 for one in checks), default=0.0)
        found.append(row)
    return found


def lines_of(results: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Return the results as a table of Markdown."""
    names = list(dict.fromkeys(name for rows in results.values() for row in rows for name in row))
    lines = ["| model | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for model, rows in results.items():
        for row in rows:
            cells = (
                f"{row[name]:.3g}" if isinstance(row.get(name), float) else str(row.get(name, "")) for name in names
            )
            lines.append(f"| {model} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Read the arguments, predict and print."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--hw", default=DEVICES)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--kernels", action="store_true", help="make machine code, and run each kernel")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for name in options.models.split(","):
        results[name] = measured(MODELS[name](torch), options.hw.split(","), options.precision, kernels=options.kernels)
        print("\n".join(lines_of({name: results[name]})), flush=True)
    if options.json is not None:
        write_json(options.json, {"environment": environment(), "results": results})


if __name__ == "__main__":
    main()
