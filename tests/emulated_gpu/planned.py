"""Plans TVM functions for a GPU through MetaSchedule and runs them on the emulated one.

    python -m tests.emulated_gpu.planned FOLDER [HARDWARE]

A convolution with its bias and rectifier, and a matrix product; what is left gets TVM's default schedules. Writes a
line of JSON.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np


def model(relax):
    """Return a Relax module, its operands and its result in float64."""
    random = np.random.default_rng(0)
    shapes = {"x": (1, 16, 14, 14), "w": (32, 16, 3, 3), "b": (1, 32, 1, 1), "fc": (196, 24)}
    operands = {name: random.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    builder = relax.BlockBuilder()
    names = {name: relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()}
    with builder.function("main", list(names.values())):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(names["x"], names["w"], padding=1))
            y = builder.emit(relax.op.nn.relu(relax.op.add(y, names["b"])))
            y = builder.emit(relax.op.matmul(relax.op.reshape(y, (32, 196)), names["fc"]))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    wide = {name: array.astype("float64") for name, array in operands.items()}
    padded = np.pad(wide["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    inner = np.maximum(np.einsum("nchwrs,kcrs->nkhw", windows, wide["w"]) + wide["b"], 0)
    return builder.get(), operands, inner.reshape(32, 196) @ wide["fc"]


def main(folder, hardware="rtx3090"):
    """Write the error over the largest magnitude, what was skipped, and launches."""
    import tvm
    from tvm import relax
    from tvm.s_tir import dlight

    from anatune import api
    from anatune.adapters import metaschedule
    from anatune.codegen.compat import make_gpu_target
    from anatune.codegen.cuda import device_modules
    from anatune.codegen.linking import link_library
    from anatune.measure.cpu.blocks import tensor_of
    from anatune.network.relax.machine import LibraryRunner
    from tests.emulated_gpu.device import Device

    folder, spec = Path(folder), api.hardware(hardware)
    target, sources = make_gpu_target(spec), {}
    compile_kernel = device_modules.compile_kernel

    def recording(kernel):
        cubin = compile_kernel(kernel)
        sources[hashlib.sha256(cubin.image).hexdigest()] = kernel
        return cubin

    device_modules.compile_kernel = recording
    module, operands, want = model(relax)
    passes = ["LegalizeOps", "AnnotateTIROpPattern", "FoldConstant", "FuseOps", "FuseTIR"]
    module = tvm.ir.transform.Sequential([getattr(relax.transform, name)() for name in passes])(module)
    skipped = []
    metaschedule.plan_model(module, target, folder / "plan", spec, on_skip=skipped.append)
    with target, metaschedule.open_database(folder / "plan"):
        module = relax.transform.MetaScheduleApplyDatabase()(module)
    planned = sum("tirx.is_scheduled" in (function.attrs or {}) for _, function in module.functions_items())
    with target:
        module = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(module)
    cubins = device_modules.Cubins(spec.arch)
    with cubins.building():
        built = relax.build(module, target)
    link_library(built, folder / "planned.so")
    cubins.embed(folder / "planned.so")
    device = Device(folder, sources, spec.arch)

    class Plain(LibraryRunner):
        def run(self, *inputs):
            result = self.take_frame().main(*(one.copyto(self._device) for one in inputs))
            return result.copyto(self._host)

    machine = Plain(folder / "planned.so", [], arch=spec.arch)
    try:
        got = machine.run(*(tensor_of(array) for array in operands.values())).numpy()
    except Exception as error:  # noqa: BLE001 - the device knows what happened
        raise SystemExit(f"{error}; {device.problems}") from None
    error = float(np.abs(got - want).max() / np.abs(want).max())
    told = {"error": error, "planned": planned, "skipped": skipped, "launches": device.launches}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
