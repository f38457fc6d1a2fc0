"""Cubins in TVM's modules: the library's bytes are changed in their place, or not at all."""

import struct

import pytest

from anatune import api
from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.cuda.device_modules import Cubins
from anatune.codegen.cuda.lower import cuda_kernel, make_named_kernel
from anatune.core.workload.operators import matmul
from anatune.errors import BuildError
from tests.wording import refuses

pytest.importorskip("tvm")
pytest.importorskip("cuda.bindings.nvrtc")


@pytest.fixture(scope="module")
def schedule():
    return api.plan(matmul(32, 32, 32), "rtx3090", 1).schedules[0]


@pytest.fixture
def cubins(schedule):
    """One module, made without a CUDA runtime."""
    kernel, part = make_named_kernel(schedule, "product")
    made = Cubins("sm_86")
    cubin = compile_kernel(kernel)
    text = made.module(part, cubin).inspect_source()
    return made, text, cubin


def words(*texts):
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def library(text, functions=b"functions of any form", *, extra=0):
    """Return a library's bytes with a module as TVM writes it."""
    module = words(b"cuda") + functions + words(text.encode())
    return b"before" * 9 + words(b"cuda") + struct.pack("<Q", len(module) + extra) + module + b"behind" * 9


def test_a_cubin_takes_the_place_of_the_text_that_stands_for_it(cubins, tmp_path):
    made, text, cubin = cubins
    assert len(text) == len(cubin.image) + 1
    path = tmp_path / "model.so"
    path.write_bytes(library(text))
    made.embed(path)
    module = words(b"cubin") + b"functions of any form" + words(cubin.image)
    assert path.read_bytes() == b"before" * 9 + words(b"cuda", module) + b"behind" * 9


@pytest.mark.parametrize("damage", ["length", "twice", "format"])
def test_another_form_than_the_known_one_is_an_error_and_nothing_is_written(cubins, tmp_path, damage):
    made, text, _ = cubins
    content = {
        "length": lambda: library(text, extra=8),
        "twice": lambda: library(text) * 2,
        "format": lambda: library(text).replace(b"cuda", b"ptx."),
    }[damage]()
    path = tmp_path / "model.so"
    path.write_bytes(content)
    with refuses(BuildError) as caught:
        made.embed(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_library_of_a_machine_with_a_cuda_runtime_is_left_alone(cubins, tmp_path):
    path = tmp_path / "model.so"
    path.write_bytes(b"cubins are in it already")
    cubins[0].embed(path)
    assert path.read_bytes() == b"cubins are in it already"


def test_callbacks_of_others_are_back_afterwards():
    import tvm_ffi

    name = "tvm_callback_cuda_postproc"
    with Cubins("sm_86").building():
        assert tvm_ffi.get_global_func(name, allow_missing=True) is not None
    assert tvm_ffi.get_global_func(name, allow_missing=True) is None


def test_a_kernel_is_the_same_under_another_name(schedule):
    plain, (named, _) = cuda_kernel(schedule), make_named_kernel(schedule, "product")
    assert named.source.replace("product_kernel", "main_kernel") == plain.source
    assert (named.name, plain.name) == ("product_kernel", "main_kernel")


def test_cuda_c_that_nvrtc_refuses_is_one_line():
    with refuses(BuildError):
        Cubins("sm_86")._compile_text('extern "C" __global__ void broken_kernel(float* x) { x[0] = nothing; }')
