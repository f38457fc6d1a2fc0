"""Built modules, linked and loaded."""

import tempfile
from pathlib import Path

import tvm


def main_of(built):
    """Return ``main`` of what `codegen.relax.building.build_library` made."""
    with tempfile.TemporaryDirectory() as folder:
        built.link(Path(folder) / "model.so")
        return tvm.relax.VirtualMachine(tvm.runtime.load_module(f"{folder}/model.so"), tvm.cpu())["main"]
