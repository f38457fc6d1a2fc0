"""Which compiler makes the kernels of which template."""

import pytest

from anatune.codegen import toolchains
from anatune.templates import TEMPLATES


def test_every_gpu_template_has_a_toolchain():
    for template in TEMPLATES.values():
        if template.kind == "gpu":
            module = toolchains.find_toolchain(template.name)
            assert module.__name__ == f"anatune.codegen.{template.toolchain}.artifact"
            assert toolchains.entry_of(template.name, "set_up") == f"{module.__name__}:set_up"
    assert toolchains.find_toolchain("triton").APART
    assert not toolchains.find_toolchain("cuda").APART


def test_versions_and_flags_of_several():
    pytest.importorskip("triton")
    pytest.importorskip("cuda.bindings.nvrtc")
    text, flags = toolchains.describe_compilers(["cuda", "thin", "triton", "cuda"])
    assert text.startswith("NVRTC 1")
    assert text.split(", ")[1].startswith("Triton 3.")
    assert len(flags) == len(set(flags)) > 1
