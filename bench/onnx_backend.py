"""The tests of the ONNX standard (`onnx.backend.test`) through anatune's backend.

    python -m bench.onnx_backend [--kind node simple ...] [--only REGEX] [--sample N] [--processes 2] [--json FILE]

Each case is compiled and run as the standard's runner does it. A case is right, wrong, refused (one line says why),
raw (an exception that is none of anatune's), or excluded: of a kind that graphs of tensors do not say, see `EXCLUDED`.
"""

from __future__ import annotations

import argparse
import functools
import glob
import multiprocessing
import os
import random
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["EXCLUDED", "KINDS", "Outcome", "cases_of", "excluded", "outcome_of", "sampled"]

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
EXCLUDED = {
    "strings": "strings",
    "sequences": "sequences, optional and sparse tensors, maps",
    "narrow": "floats of 8 bits and less, integers of 4 bits and less",
    "complex": "complex numbers",
    "random": "random numbers",
    "data": "sizes that depend on data",
    "training": "training: gradients, optimisers",
    "ml": "operators of ai.onnx.ml",
    "images": "image decoders",
}
_OPERATORS = {
    **dict.fromkeys(("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"), "random"),
    "RandomUniformLike": "random",
    **dict.fromkeys(("NonMaxSuppression", "NonZero", "Unique"), "data"),
    **dict.fromkeys(("Adagrad", "Adam", "Gradient", "Momentum"), "training"),
    **dict.fromkeys(
        ("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"), "strings"
    ),
    "ImageDecoder": "images",
}
_TYPES = {8: "strings", 14: "complex", 15: "complex"}
_NARROW_FROM = 17


class Outcome(NamedTuple):
    """What became of one case: "right", "wrong", "refused", "raw" or "excluded", and why."""

    name: str
    kind: str
    state: str
    why: str


@functools.cache
def cases_of(kind: str) -> list[Any]:
    """Return the cases of a kind, in order of their names."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(load_model_tests(kind=kind), key=lambda case: case.name)


def _light(case: Any) -> Path | None:
    """Return the file, in the package onnx, of a real model whose weights are made up; None: the case is none."""
    import onnx

    return Path(onnx.__file__).parents[1] / case.url if case.model_dir is None and case.url else None


def model_of(case: Any) -> Any:
    """Return the model of a case."""
    import onnx

    if case.model is not None:
        return case.model
    return onnx.load(_light(case) or os.path.join(case.model_dir, "model.onnx"))


def excluded(case: Any) -> str:
    """Return why a case is not tried, a key of `EXCLUDED`; "": it is."""
    model = model_of(case)
    for node in model.graph.node:
        if node.domain == "ai.onnx.ml":
            return "ml"
        if node.domain.startswith("ai.onnx.preview.training") or _OPERATORS.get(node.op_type) == "training":
            return "training"
        if node.op_type in _OPERATORS:
            return _OPERATORS[node.op_type]
        if node.op_type == "Dropout" and "training" in case.name and "zero" not in case.name:
            return "random"
    for value in (*model.graph.input, *model.graph.output):
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            return "sequences"
        element = value.type.tensor_type.elem_type
        if element in _TYPES:
            return _TYPES[element]
        if element >= _NARROW_FROM:
            return "narrow"
    inner = {node.op_type for node in model.graph.node}
    return "sequences" if any("Sequence" in word or "Optional" in word for word in inner) else ""


def sampled(kinds: Sequence[str], count: int, seed: int = 0) -> list[tuple[str, Any]]:
    """Return a fixed sample of the cases that are tried, expanded ones left out."""
    named = [(kind, case) for kind in kinds for case in cases_of(kind) if "_expanded" not in case.name]
    random.Random(seed).shuffle(named)
    kept = ((kind, case) for kind, case in named if not excluded(case))
    return [one for _, one in zip(range(count), kept, strict=False)]


def _data_of(case: Any, model: Any) -> list[tuple[list[Any], list[Any]]]:
    """Return inputs and outputs of a case's runs."""
    from onnx import TensorProto, numpy_helper
    from onnx.backend.test.runner import Runner

    if case.data_sets is not None:
        plain = lambda one: numpy_helper.to_array(one) if isinstance(one, TensorProto) else one  # noqa: E731
        return [([plain(one) for one in inputs], [plain(one) for one in outputs]) for inputs, outputs in case.data_sets]
    light = _light(case)
    if light is not None:
        weights = {weight.name for weight in model.graph.initializer}
        given = [value for value in model.graph.input if value.name not in weights]
        expected = TensorProto.FromString(light.with_name(f"{light.stem}_output_0.pb").read_bytes())
        return [([Runner.generate_dummy_data(value) for value in given], [numpy_helper.to_array(expected)])]
    found = []
    for folder in sorted(glob.glob(os.path.join(case.model_dir, "test_data_set_*"))):
        arrays = []
        for word in ("input", "output"):
            files = sorted(Path(folder).glob(f"{word}_*.pb"), key=lambda path: int(path.stem.rpartition("_")[2]))
            arrays.append([numpy_helper.to_array(TensorProto.FromString(path.read_bytes())) for path in files])
        found.append((arrays[0], arrays[1]))
    return found


def outcome_of(kind: str, case: Any) -> Outcome:
    """Return what becomes of one case."""
    from onnx.backend.test.runner import Runner

    from anatune.adapters.onnx import Backend
    from anatune.errors import AnatuneError

    why = excluded(case)
    if why:
        return Outcome(case.name, kind, "excluded", why)
    try:
        model = model_of(case)
        prepared = Backend.prepare(model, threads=1)
        for inputs, outputs in _data_of(case, model):
            found = prepared.run(inputs)
            try:
                Runner.assert_similar_outputs(outputs, found, rtol=case.rtol, atol=case.atol)
            except AssertionError as error:
                return Outcome(case.name, kind, "wrong", " ".join(str(error).split())[:200])
    except AnatuneError as error:
        return Outcome(case.name, kind, "refused", str(error))
    except Exception as error:  # noqa: BLE001  that there are none is what is looked for
        return Outcome(case.name, kind, "raw", f"{type(error).__name__}: {error}"[:200])
    return Outcome(case.name, kind, "right", "")


def _outcome_at(place: tuple[str, int]) -> Outcome:
    kind, number = place
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return outcome_of(kind, cases_of(kind)[number])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print what became of them."""
    from rich.table import Table

    from bench.results import environment, progress_bar, wide_console, write_json

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--only", default="", metavar="REGEX", help="of names")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, drawn at random, always the same")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    places = [
        (kind, number)
        for kind in options.kind
        for number, case in enumerate(cases_of(kind))
        if re.search(options.only, case.name)
    ]
    random.Random(0).shuffle(places)
    places = places[: options.sample]
    began, found = time.perf_counter(), []
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.processes, maxtasksperchild=400) as pool, progress_bar() as bar:
        task = bar.add_task("cases", total=len(places))
        for one in pool.imap_unordered(_outcome_at, places, chunksize=8):
            found.append(one)
            bar.advance(task)
    console = wide_console(120)
    table = Table("kind", "cases", "excluded", "right", "refused", "wrong", "raw", "right of tried")
    for kind in (*options.kind, "all"):
        own = [one for one in found if kind in (one.kind, "all")]
        counts = Counter(one.state for one in own)
        tried = len(own) - counts["excluded"]
        words = [f"{counts[state]:,}" for state in ("excluded", "right", "refused", "wrong", "raw")]
        table.add_row(kind, f"{len(own):,}", *words, f"{counts['right'] / max(tried, 1):.1%}")
    console.print(table)
    reasons = Counter(one.why for one in found if one.state == "excluded")
    for why, count in reasons.most_common():
        console.print(f"excluded: {count:,} {EXCLUDED[why]}")
    grouped = defaultdict(list)
    for one in found:
        if one.state in ("refused", "wrong", "raw"):
            grouped[one.state, re.sub(r"\(node [^)]*\)", "", one.why)].append(one.name)
    for (state, why), names in sorted(grouped.items(), key=lambda item: -len(item[1])):
        console.print(f"{state}: {len(names)} {why} ({', '.join(names[:3])})", markup=False)
    console.print(f"{time.perf_counter() - began:.0f} s")
    if options.json:
        write_json(options.json, {"environment": environment(), "outcomes": [one._asdict() for one in found]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
