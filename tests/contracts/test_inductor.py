"""Pruners and lookup tables inside the real TorchInductor: its own choices, buffers, heuristics and classes."""

import contextlib
from types import SimpleNamespace

import pytest

import anatune
from anatune.adapters.inductor import choice_pruner, inductor_choices, lookup_table

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


kernel_inputs = pytest.importorskip("torch._inductor.kernel_inputs", reason="needs PyTorch 2.13")


@pytest.fixture
def graph(monkeypatch):
    """Return Inductor's settings where its classes choose as on an H100, with max-autotune switched on."""
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    monkeypatch.setattr("torch._inductor.utils.get_max_num_sms", lambda: 132)
    lowering = GraphLowering(torch.fx.symbolic_trace(torch.nn.Identity()))
    with config.patch(max_autotune=True), V.set_graph_handler(lowering):
        yield config


def matrices(m, n, k, dtype=torch.float16, bias=False, linear=False):
    def matrix(name, shape, stride):
        return ir.InputBuffer(name=name, layout=ir.FixedLayout(torch.device("cuda", 0), dtype, shape, stride))

    inputs = [matrix("a", [m, k], [k, 1]), matrix("b", [k, n], [1, k] if linear else [n, 1])]
    if not bias:
        return kernel_inputs.MMKernelInputs(inputs)
    row = matrix("bias", [m, n], [0, 1])
    return kernel_inputs.MMKernelInputs([row, *inputs], scalars={"alpha": 1, "beta": 1})


def generated(handler, inputs, operator="mm", templates=()):
    """Return the choices that a handler has code generated for."""
    from torch._inductor.kernel import mm

    templates = list(templates) or [mm.mm_template, mm.persistent_tma_mm_template, mm.aten_mm]
    found = {template.uid: handler.get_ktc(inputs, template, operator) for template in templates}
    return handler._finalize_template_configs(found, inputs, templates, operator)


def names(found):
    return [choice.template.uid for choice in found]


def test_inductor_generates_only_what_is_kept(graph):
    from torch._inductor.choices import InductorChoices

    inputs = matrices(4096, 4096, 4096)
    everything, few = generated(InductorChoices(), inputs), generated(inductor_choices("h100", keep=3)(), inputs)
    assert len(everything) > 20
    assert names(few)[-1] == "aten::mm"
    assert len(few) == 4
    one = generated(inductor_choices("h100", keep=1, library="predicted")(), inputs)
    assert len(one) == 1


def test_products_with_scales_are_pruned_batches_are_not(graph):
    from torch._inductor.choices import InductorChoices
    from torch._inductor.kernel import bmm, mm

    def matrix(name, shape, dtype, *stride):
        return ir.InputBuffer(name=name, layout=ir.FixedLayout(torch.device("cuda", 0), dtype, shape, stride))

    scales = [matrix("s", [4096, 1], torch.float32, 1, 1), matrix("t", [1, 4096], torch.float32, 4096, 1)]
    eight = torch.float8_e4m3fn
    operands = [matrix("a", [4096, 4096], eight, 4096, 1), matrix("b", [4096, 4096], eight, 1, 4096)]
    inputs = kernel_inputs.MMKernelInputs([*operands, *scales], mat1_idx=0, mat2_idx=1, out_dtype=torch.bfloat16)
    scaled = [mm.mm_template, mm.scaled_mm_device_tma_epilogue_scaling_template, mm.aten__fp8_mm]
    assert len(generated(InductorChoices(), inputs, "scaled_mm", scaled)) > 20
    few = generated(inductor_choices("h100", keep=3)(), inputs, "scaled_mm", scaled)
    assert names(few)[-1] == "aten::_scaled_mm"
    assert len(few) == 4
    several = [matrix(name, [8, 512, 512], torch.float16, 512 * 512, 512, 1) for name in "ab"]
    inputs, templates = kernel_inputs.MMKernelInputs(several), [bmm.bmm_template, bmm.aten_bmm]
    everything = names(generated(InductorChoices(), inputs, "bmm", templates))
    assert names(generated(inductor_choices("h100", keep=3)(), inputs, "bmm", templates)) == everything


def test_a_library_wins_where_tiles_fall_behind(graph):
    from torch._inductor.choices import InductorChoices

    inputs = matrices(16, 64, 65536)  # few tiles, long sums: Inductor's template does not split them
    assert len(generated(InductorChoices(), inputs)) > 5
    assert names(generated(inductor_choices("h100", keep=1, library="predicted")(), inputs)) == ["aten::mm"]


def test_inductor_takes_the_factory(graph):
    handler = inductor_choices("a100", keep=2)
    with graph.patch(inductor_choices_class=handler):
        from torch._inductor.virtualized import _choices_default

        made = _choices_default()
    assert "keep=2" in made.uuid()


@pytest.mark.parametrize("step", [(), ("bias",)])
def test_the_table_is_found(graph, monkeypatch, step):
    from torch._inductor.lookup_table.choices import LookupTableChoices

    product = anatune.matmul(4096, 512, 1024, dtype="float16", transpose_b=True, epilogue=step)
    table = lookup_table([product], "h100")
    monkeypatch.setattr(LookupTableChoices, "_get_lookup_table", lambda self: table)
    monkeypatch.setattr(LookupTableChoices, "_get_device_key", staticmethod(lambda device: "sm_90"))
    inputs = matrices(4096, 512, 1024, bias=bool(step), linear=True)
    (only,) = generated(LookupTableChoices(), inputs, "addmm" if step else "mm")
    (entry,) = table.values()
    assert only.template.uid == "triton::mm"
    assert only.params.to_kwargs().items() >= {k: v for k, v in entry[0].items() if k != "template_id"}.items()
