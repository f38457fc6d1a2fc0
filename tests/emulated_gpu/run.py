"""Compiles a small model for a GPU, loads it on the emulated one and compares: ``python -m tests.emulated_gpu.run``.

    python -m tests.emulated_gpu.run MODEL FOLDER [HARDWARE] [ACCURACY] [SPLIT]

MODEL is a function of `tests.unit.network.compiling.models`. With SPLIT the reductions of all its products are
divided into so many parts, where their steps allow it. Writes a line of JSON.
"""

import hashlib
import json
import sys
from pathlib import Path

import msgspec
import numpy as np

from anatune.errors import SpaceError


def divided(planned, split):
    """Return a planned graph whose products split their reductions."""
    kernels = []
    for one in planned.kernels:
        found = msgspec.structs.replace(one.schedule, options={**one.schedule.options, "split": split})
        try:
            kernels.append(one._replace(schedule=found.check()))
        except SpaceError:
            kernels.append(one)
    return planned._replace(kernels=kernels)


def main(name, folder, hardware="rtx3090", accuracy="standard", split="1"):
    """Write errors of the outputs over their largest magnitude, launches, and what the summary says."""
    import torch

    import anatune
    from anatune.codegen.cuda import device_modules
    from anatune.network.compiling.targets import gpu
    from anatune.network.relax import gpu_kernels
    from tests.emulated_gpu.device import Device
    from tests.unit.network.compiling import models

    folder = Path(folder)
    sources = {}
    compile_kernel = gpu_kernels.compile_kernel

    def recording(kernel):
        cubin = compile_kernel(kernel)
        sources[hashlib.sha256(cubin.image).hexdigest()] = kernel
        return cubin

    gpu_kernels.compile_kernel = device_modules.compile_kernel = recording
    if split != "1":
        choose = gpu.choose_graph
        gpu.choose_graph = lambda *words: divided(choose(*words), int(split))
    module, x = getattr(models, name)()
    compiled = anatune.compile(module, x, hw=hardware, accuracy=accuracy)
    compiled.save(folder / "model")
    device = Device(folder, sources, compiled.summary.arch)
    loaded = anatune.load(folder / "model")
    try:
        got = loaded(x)
    except Exception as error:  # noqa: BLE001 - the device knows what happened
        raise SystemExit(f"{error}; {device.problems}") from None
    with torch.no_grad():
        want = module.double()(x.double() if x.is_floating_point() else x)
    pairs = zip(got, want, strict=True) if loaded.summary.is_tuple else [(got, want)]
    errors = [float(np.abs(own.numpy() - other.numpy()).max() / np.abs(other.numpy()).max()) for own, other in pairs]
    again = loaded.profile(x, repeats=1)
    templates = sorted({kernel.template for kernel in loaded.summary.kernels})
    told = {
        "errors": errors,
        "templates": templates,
        "launches": device.launches,
        "profile": again,
        "problems": device.problems,
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
