"""The Python file of an exported Triton schedule: what its function launches, and what it refuses."""

import contextvars
import sys
import types

import pytest

import anatune
from anatune.export.triton.write import write_launcher
from tests.wording import refuses

WORKLOAD = anatune.matmul(512, 256, 4096, dtype="float16", epilogue=("bias", "relu"))


class Tensor:
    """As much of a tensor of PyTorch as the function looks at."""

    def __init__(self, shape, dtype="float16", device="cuda:0"):
        self.shape, self.dtype, self.device = shape, dtype, device

    def is_contiguous(self):
        return True


class Seen:
    """Has DLPack, and is seen as a tensor."""

    shape = (512, 4096)


@pytest.fixture
def launched(monkeypatch):
    """Let modules import a Triton and a PyTorch that only note what is asked of them; return the list of launches."""
    notes = []

    def jit(function):
        class Kernel:
            def __getitem__(self, grid):
                return lambda *tensors, **options: notes.append((function.__name__, grid, tensors, options))

        return Kernel()

    language = types.ModuleType("triton.language")
    language.constexpr = lambda value: value
    triton = types.ModuleType("triton")
    triton.jit, triton.language = jit, language
    torch = types.ModuleType("torch")
    torch.Tensor, torch.float16, torch.float32, torch.int8 = Tensor, "float16", "float32", "int8"
    torch.empty = lambda shape, dtype, device: Tensor(shape, dtype, device)
    torch.from_dlpack = lambda other: Tensor(other.shape)
    for name, module in {"triton": triton, "triton.language": language, "torch": torch}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return notes


def exported(folder, **options):
    space = anatune.space(WORKLOAD, "h100", template="triton")
    made = space.schedule({"m": 128, "n": 128, "k": 64}, num_warps=8, **options)
    file, call = write_launcher(made, "product", folder)
    text = (folder / file).read_text()
    space = {"__name__": "product"}
    exec(compile(text, file, "exec"), space)
    return text, call, space["run"]


def test_run_launches_all_kernels_in_order(tmp_path, launched):
    text, call, function = exported(tmp_path, split_k=2)
    assert call == "run(A, B, bias, C=None, parts=None)"
    assert "float16 operands" in text
    a, b, bias = Tensor((512, 4096)), Tensor((4096, 256)), Tensor((256,))
    result = function(a, b, bias)
    assert (result.shape, result.dtype, result.device) == ((512, 256), "float16", "cuda:0")
    assert "set_allocator" not in text  # nothing needs memory of Triton's
    (product, grid, taken, options), (add, _, added, _) = launched
    assert product != add
    assert grid == (16,)
    assert taken[:2] == (a, b)
    assert taken[2].shape == (2, 512, 256)
    assert added == (taken[2], bias, result)
    assert (options["num_warps"], options["num_stages"], options["enable_fp_fusion"]) == (8, 3, True)
    given = Tensor((512, 256))
    assert function(Seen(), b, bias, given) is given


def test_the_allocator_of_the_caller_stays(tmp_path, launched, monkeypatch):
    allocator = contextvars.ContextVar("allocator", default="the caller's")
    monkeypatch.setattr(sys.modules["triton"], "set_allocator", allocator.set, raising=False)
    jit = sys.modules["triton"].jit

    def noting(function):
        kernel = jit(function)
        kernel.__class__.__getitem__ = lambda self, grid: lambda *_, **__: launched.append(allocator.get())
        return kernel

    monkeypatch.setattr(sys.modules["triton"], "jit", noting)
    text, _, function = exported(tmp_path, descriptors=1)
    assert "make_tensor_descriptor" in text
    function(Tensor((512, 4096)), Tensor((4096, 256)), Tensor((256,)))
    (during,) = launched
    assert during(7, 128, None).shape == 7
    assert allocator.get() == "the caller's"


def test_run_refuses_other_tensors(tmp_path, launched):
    _, _, function = exported(tmp_path)
    with refuses(ValueError):
        function(Tensor((512, 4096)), Tensor((256, 4096)), Tensor((256,)))
    assert not launched
