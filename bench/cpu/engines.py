"""What runs whole models on CPUs: anatune, ONNX Runtime, OpenVINO, PyTorch eager and compiled; in 32, 16 or 8 bits.

An engine takes a network and returns a call without arguments; one that is not installed, or cannot run a model, raises
`Unavailable` with the reason. What takes long is kept in a folder: ONNX files, anatune's models, compiled code.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.cpu.networks import Network, onnx_file, quantised_file

__all__ = ["ENGINES", "RIVALS", "Place", "Unavailable", "compile_seconds", "outputs_of"]

Call = Callable[[], Any]


class Unavailable(Exception):  # noqa: N818 - no error of the bench's: the engine is left out, and that is said
    """An engine cannot run a model; the message says why."""


class Place(NamedTuple):
    """Under what engines run.

    Attributes
    ----------
    torch
        PyTorch, set to the threads.
    threads : int
    folder : Path
        Of what is kept between calls of the bench.
    tuned : Path, optional
        Folder of tuned models, each as ``anatune compile`` wrote it, by the networks' names.
    precision : {"float32", "bfloat16", "int8"}
        Of products; ONNX Runtime has no bfloat16, PyTorch reads no ONNX file, which "int8" is.
    """

    torch: Any
    threads: int
    folder: Path
    tuned: Path | None = None
    precision: str = "float32"

    @property
    def kept(self) -> str:
        """What names of anatune's folders have behind the model's."""
        return f"{self.threads}" if self.precision == "float32" else f"{self.threads}-{self.precision}"


def _anatune(made: Network, place: Place) -> Call:
    """Compile with anatune without measurements; again where the package has changed."""
    import anatune
    from anatune.errors import AnatuneError

    folder = place.folder / f"{made.name}-{place.kept}-{_package_digest(Path(anatune.__file__).parent)}"
    try:
        if not folder.exists():
            for old in place.folder.glob(f"{made.name}-{place.kept}-????????????.json"):
                shutil.rmtree(old.with_suffix(""), ignore_errors=True)
                old.unlink()
            began = time.process_time()
            if place.precision == "int8":
                compiled = anatune.compile(_file(made, place), threads=place.threads)
            else:
                compiled = anatune.compile(made.module, made.example, threads=place.threads, precision=place.precision)
            times = {"seconds": time.process_time() - began, "weight_bytes": compiled.summary.weight_bytes}
            compiled.save(folder)
            folder.with_suffix(".json").write_bytes(msgspec.json.encode(times))
        return anatune.load(folder, mapped=False).prepared(made.example.numpy())
    except AnatuneError as error:
        raise Unavailable(str(error)) from None


def _file(made: Network, place: Place) -> Path:
    """Return the model as an ONNX file."""
    try:
        return (quantised_file if place.precision == "int8" else onnx_file)(place.torch, made, place.folder)
    except ImportError as error:
        raise Unavailable(f"pip install onnxruntime ({error})") from None


def compile_seconds(made: str, place: Place) -> float | None:
    """Return the CPU time in which anatune compiled a model last; None if that is not known."""
    for path in place.folder.glob(f"{made}-{place.kept}-????????????.json"):
        if path.with_suffix("").exists():
            return float(msgspec.json.decode(path.read_bytes())["seconds"])
    return None


def _package_digest(package: Path) -> str:
    """Return a digest of a package's sources."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _tuned(made: Network, place: Place) -> Call:
    """Load the model that was tuned and saved beforehand."""
    import anatune
    from anatune.errors import AnatuneError

    if place.tuned is None or not (place.tuned / made.name).exists():
        raise Unavailable(f"no folder {made.name} in --tuned {place.tuned}" if place.tuned else "--tuned is not given")
    try:
        return anatune.load(place.tuned / made.name, mapped=False).prepared(made.example.numpy())
    except AnatuneError as error:
        raise Unavailable(str(error)) from None


def _onnxruntime(made: Network, place: Place) -> Call:
    try:
        import onnxruntime
    except ImportError as error:
        raise Unavailable(f"pip install onnxruntime ({error})") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = place.threads, 1
    path = str(_file(made, place))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {session.get_inputs()[0].name: made.example.numpy()}
    return lambda: session.run(None, inputs)


def _openvino(made: Network, place: Place) -> Call:
    try:
        import openvino
    except ImportError as error:
        raise Unavailable(f"pip install openvino ({error})") from None
    core = openvino.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16" if place.precision == "bfloat16" else "f32",
        "INFERENCE_NUM_THREADS": place.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = core.compile_model(str(_file(made, place)), "CPU", settings)
    request, array = compiled.create_infer_request(), made.example.numpy()
    return lambda: request.infer([array], share_inputs=True, share_outputs=True)


def _inductor(made: Network, place: Place) -> Call:
    """PyTorch's compiler, weights frozen and packed."""
    import torch._inductor.config as settings

    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(place.folder / "inductor"))
    settings.freezing = True
    place.torch._dynamo.reset()
    call = _in_precision(place.torch.compile(made.module), made, place)
    try:
        with place.torch.no_grad():
            call()
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises
        raise Unavailable(str(error).splitlines()[0][:200]) from None
    return call


def _eager(made: Network, place: Place) -> Call:
    return _in_precision(made.module, made, place)


def _in_precision(module: Any, made: Network, place: Place) -> Call:
    """Return the call of a module whose products have the precision."""
    if place.precision == "int8":
        raise Unavailable("int8 is an ONNX file")
    if place.precision == "float32":
        return lambda: module(made.example)

    def call() -> Any:
        with place.torch.autocast("cpu", getattr(place.torch, place.precision)):
            return module(made.example)

    return call


ENGINES: dict[str, Callable[[Network, Place], Call]] = {
    "anatune": _anatune,
    "tuned": _tuned,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "inductor": _inductor,
    "eager": _eager,
}
RIVALS = ("onnxruntime", "openvino", "inductor", "eager")


def outputs_of(result: Any) -> Any:
    """Return the first output of what a call of any engine returned, as a NumPy array."""
    import numpy as np

    first = result
    while not hasattr(first, "__dlpack__"):
        first = next(iter(first.values() if hasattr(first, "values") else first))
    return np.asarray(first.detach().float() if hasattr(first, "detach") else np.from_dlpack(first))
