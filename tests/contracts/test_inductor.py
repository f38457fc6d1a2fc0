"""The choice pruner inside the real TorchInductor: its own choices and buffers, its own list of preprocessors."""

import contextlib
from types import SimpleNamespace

import pytest

from anatune.adapters.triton import choice_pruner

torch = pytest.importorskip("torch", reason="contract tests of the choice pruner need torch")
select = pytest.importorskip("torch._inductor.select_algorithm", reason="needs TorchInductor")
if not hasattr(select, "add_preprocessing_fn"):
    pytest.skip("this PyTorch has no add_preprocessing_fn", allow_module_level=True)
from torch._inductor import ir  # noqa: E402

TILES = [(m, n, k, w, s) for m in (16, 64, 128) for n in (64, 128) for k in (32, 64) for w in (4, 8) for s in (3, 4)]


def buffer(name, shape, dtype):
    return ir.InputBuffer(name=name, layout=layout(shape, dtype))


def layout(shape, dtype):
    return ir.FixedLayout(torch.device("cuda", 0), dtype, shape, [shape[1], 1])


def choices(m, n, k, dtype=torch.float16, template="triton_mm", **info):
    operands = [buffer("a", [m, k], dtype), buffer("b", [k, n], dtype)]
    request = SimpleNamespace(num_stages=0, num_warps=0, module_path="", module_cache_key="")
    made = []
    for number, (block_m, block_n, block_k, warps, stages) in enumerate(TILES):
        known = {"tile_shape": str((block_m, block_k, block_n)), "GROUP_M": 8, "allow_tf32": "True"} | info
        caller = select.TritonTemplateCaller(
            f"{template}_{number}", operands, layout([m, n], dtype), None, "", request, log_info=known
        )
        caller.log_info |= {"num_warps": warps, "num_stages": stages}
        made.append(caller)
    return made


def sizes(choice):
    return choice.log_info["tile_shape"], choice.log_info["num_warps"], choice.log_info["num_stages"]


def test_inductor_asks_before_it_compiles():
    seen = []
    selector = select.AlgorithmSelectorCache()
    selector.add_preprocessing_fn(choice_pruner("a100", keep=4))
    selector.add_preprocessing_fn(lambda left: seen.append(left) or [])
    library = SimpleNamespace(name="mm", info_dict=dict, description="")
    with contextlib.suppress(Exception):  # there is no GPU to measure on, and nothing is left to choose from
        selector("mm", [*choices(4096, 4096, 4096), library], [], layout([4096, 4096], torch.float16))
    (left,) = seen
    assert len(left) == 5
    assert left[-1] is library


def test_extents_and_types_decide():
    prune = choice_pruner("a100", keep=3)
    large, few = choices(4096, 4096, 4096), choices(16, 4096, 4096)
    assert [sizes(c) for c in prune(large)] != [sizes(c) for c in prune(few)]
    full = choices(4096, 4096, 4096, torch.float32, allow_tf32="False")
    rounded = choices(4096, 4096, 4096, torch.float32)
    assert [sizes(c) for c in prune(full)] != [sizes(c) for c in prune(rounded)]


@pytest.mark.parametrize("template", ["triton_mm_persistent", "triton_mm_persistent_tma"])
def test_persistent_templates(template):
    assert len(choice_pruner("h100_sxm", keep=3)(choices(4096, 4096, 4096, template=template))) == 3


@pytest.mark.parametrize("template", ["triton_mm_plus_mm", "triton_flex_attention", "triton_bmm"])
def test_other_templates_are_left_alone(template):
    given = choices(64, 64, 64, template=template)
    assert choice_pruner("a100")(given) == given


def test_unknown_extents_are_left_alone():
    import sympy

    given = choices(sympy.Symbol("s0", integer=True), 64, 64)
    assert choice_pruner("a100")(given) == given
