"""The programs of docs/howto/rtx4090.md: launches by CuPy run in the emulator, the others name what there is."""

import ast
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import anatune as package
from tests.documents import ROOT, blocks

PAGE = ROOT / "docs" / "howto" / "rtx4090.md"
SHAPES = ("64x48x32", "16x16x4096")
"""The second one splits its reduction: two kernels and a workspace."""


def program(word):
    (block,) = [block for block in blocks(PAGE) if block.language == "python" and f"import {word}" in block.text]
    return block.text


class EmulatedModule:
    """What `cupy.RawModule` is: loads a cubin, launches its kernels; here in the emulator, on NumPy arrays."""

    def __init__(self, path):
        from anatune.codegen.cuda.lower import cuda_kernel
        from anatune.measure.emulate.emulator import EmulatedKernel

        assert Path(path).read_bytes()[:4] == b"\x7fELF"
        manifest = json.loads(Path(path).with_suffix(".json").read_text())
        self.kernel = cuda_kernel(package.Schedule.from_json(json.dumps(manifest["schedule"])))
        self.emulated, self.names = EmulatedKernel(self.kernel), [launch["kernel"] for launch in steps(manifest)]

    def get_function(self, name):
        number = self.names.index(name)
        taken = self.kernel.launches[number]

        def launch(grid, block, parameters, *, shared_mem):
            assert (grid, block) == ((taken.grid, 1, 1), (taken.block, 1, 1))
            assert shared_mem == taken.dynamic_shared_bytes
            arrays = {}
            for buffer, array in zip(taken.parameters, parameters, strict=True):
                arrays[buffer.tensor] = array.view(buffer.dtype).reshape(buffer.shape)
            self.emulated.run(arrays, launch=number)

        return Function(launch)


class Function:
    """What `cupy.RawKernel` is."""

    max_dynamic_shared_size_bytes = 0

    def __init__(self, launch):
        self._launch = launch

    def __call__(self, *arguments, **keywords):
        self._launch(*arguments, **keywords)


def steps(manifest):
    launch = manifest["launch"]
    return [*launch.get("before", []), launch, *launch.get("after", [])]


@pytest.mark.parametrize("shape", SHAPES)
def test_cupys_launches_are_right(anatune, monkeypatch, tmp_path, shape):
    pytest.importorskip("tvm", reason="pip install '.[tvm]'")
    pytest.importorskip("cuda.bindings", reason="pip install '.[cuda]'")
    done = anatune("export", "--hw", "rtx4090", "matmul", shape, "--output", tmp_path / "kernel", "--template", "cuda")
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    random = types.SimpleNamespace(rand=lambda *sizes, dtype: np.random.default_rng(0).random(sizes, dtype=dtype))
    cupy = types.SimpleNamespace(RawModule=EmulatedModule, empty=np.empty, random=random, testing=np.testing)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    m, n, k = shape.split("x")
    text = program("cupy").replace("1024x1024x1024", shape)
    text = text.replace("a = cupy.random.rand(1024, 1024,", f"a = cupy.random.rand({m}, {k},")
    text = text.replace("b = cupy.random.rand(1024, 1024,", f"b = cupy.random.rand({k}, {n},")
    names = {"__name__": "program"}
    exec(compile(text, "rtx4090.md", "exec"), names)  # compares with a @ b in its last line
    assert len(steps(names["manifest"])) == (2 if shape == SHAPES[1] else 1)


def test_the_mlp_is_that_of_a_decoder(monkeypatch):
    torch = pytest.importorskip("torch", reason="pip install torch")
    text = program("gate_up").replace(', device="cuda"', "").replace("float16", "float32")
    for large, small in (("22016", "48"), ("11008", "24"), ("4096", "32")):
        text = text.replace(large, small)
    silu = torch.nn.functional.silu
    runs = {
        "gate_up": torch.matmul,
        "gated": lambda data: silu(data[:, 0]) * data[:, 1],  # as `anatune.silu_multiply` has it
        "down": torch.matmul,
    }
    for name, run in runs.items():
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(run=run))
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(compile(text, "rtx4090.md", "exec"), {"__name__": "program"})  # compares in its last line


def test_the_other_program_names_what_nvidias_bindings_have():
    driver = pytest.importorskip("cuda.bindings.driver", reason="pip install '.[cuda]'")
    tree = ast.parse(program("driver"))
    asked = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "driver"
    }
    assert {"cuModuleLoadData", "cuLaunchKernel"} <= asked
    assert all(hasattr(driver, name) for name in asked)
    assert hasattr(driver.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES")
