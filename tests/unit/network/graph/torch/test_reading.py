"""What of an exported program is no operator: inputs, weights, parts, results, and what is refused."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.network.graph.nodes import tensor_type
from anatune.network.graph.torch.reading import graph_of_program, refused_nodes
from anatune.network.relax.frontends import decompose
from tests.wording import refuses

torch = pytest.importorskip("torch")


class Module(torch.nn.Module):
    """What a function computes, with one parameter under two names."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
        self.same = self.weight

    def forward(self, *inputs):
        return self.function(self, *inputs)


def program_of(function, *inputs, **options):
    module = torch.nn.Sequential(Module(function)).eval() if len(inputs) == 1 else Module(function).eval()
    with torch.no_grad():
        return decompose(torch.export.export(module, inputs, **options), "it")


def test_inputs_are_named_and_equal_weights_are_one():
    graph = graph_of_program(program_of(lambda own, x, y: (x @ own.weight, y @ own.same), *torch.ones(2, 2, 3)), "it")
    assert [(str(one.type), one.name) for one in graph.inputs] == [
        ("2x3 float32", "inputs_0"),
        ("2x3 float32", "inputs_1"),
    ]
    (weight,) = graph.constants()
    assert np.array_equal(weight.array, np.arange(12.0).reshape(3, 4))
    assert graph.is_tuple


def test_weights_of_16_bits():
    pytest.importorskip("ml_dtypes")
    graph = graph_of_program(program_of(lambda own, x: x + own.weight.bfloat16(), torch.ones(4)), "it")
    assert str(graph.outputs[0].type) == "3x4 float32"


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_statistics_of_16_bits_have_the_type_that_pytorch_declares(device, dtype):
    """Weights that are standardised by a batch norm without running statistics, as in NFNets: float32 on "meta"."""
    weight, scale = (torch.ones(*sizes, dtype=getattr(torch, dtype), device=device) for sizes in ((4, 3, 5, 5), (4,)))

    def function(own, x):
        rows = weight.reshape(1, 4, -1)
        normed = torch.nn.functional.batch_norm(rows, None, None, scale, training=True, eps=1e-6)
        y = torch.nn.functional.conv2d(x, normed.reshape_as(weight))
        return torch.nn.functional.instance_norm(y), torch.native_group_norm(y, None, None, 2, 4, 16, 2, 1e-5)

    x = torch.ones(2, 3, 8, 8, dtype=weight.dtype, device=device)
    graph = graph_of_program(program_of(function, x), "it")
    assert {tensor_type(one).dtype for one in graph.outputs} == {dtype}


def test_parts_of_a_program_without_gradients_are_read():
    def function(own, x):
        with torch.enable_grad():
            y = x * 2
        return y + 1

    graph = graph_of_program(program_of(function, torch.ones(2)), "it")
    assert [node.op for node in graph.nodes()] == ["multiply", "add"]


MASK = torch.tensor([True, False, True])


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda own, x: x[MASK] * 2, "2x2 float32"),
        (lambda own, x: x.repeat_interleave(torch.tensor([1, 0, 2]), 0).flatten(), "6 float32"),
        (lambda own, x: torch.nonzero(MASK), "2x1 int64"),
        (lambda own, x: x.masked_select(MASK[:, None]), "4 float32"),
    ],
)
def test_sizes_that_depend_on_known_values(function, kind):
    graph = graph_of_program(program_of(function, torch.ones(3, 2)), "it")
    assert str(graph.outputs[0].type) == kind


def test_all_that_is_refused_is_named_with_its_place():
    def function(own, x):
        return torch.lgamma(x) + torch.lgamma(x + 1) + torch.digamma(x) + torch.rand(2)

    program = program_of(function, torch.ones(2))
    with pytest.raises(WorkloadError) as caught:
        graph_of_program(program, "Model")
    said = str(caught.value)
    assert said.startswith(
        "Model cannot be read: anatune cannot read lgamma.default (node lgamma in 0 and 1 more), digamma.default (node "
        "digamma in 0); export the model with other operators, or run it with torch.compile"
    )
    assert "rand.default (node rand in 0) draws random numbers" in said
    assert "\n" not in said
    assert [node.name for node in refused_nodes(program)] == ["lgamma", "lgamma_1", "digamma", "rand"]


def test_what_reads_other_numbers_is_refused():
    program = program_of(lambda own, x: torch.view_as_real(torch.fft.rfft(x) * 2).sum(), torch.ones(4))
    assert [node.name for node in refused_nodes(program)][:2] == ["_fft_r2c", "mul"]


@pytest.mark.parametrize(
    ("function", "is_read"),
    [
        (lambda own, x: x.clone().as_strided((2, 3), (1, 2), 1), True),
        (lambda own, x: x.t().clone().as_strided((2, 3), (1, 2)), False),
        (lambda own, x: (x + 1)[:, 1:].as_strided((2,), (1,)), False),
        (lambda own, x: (x + 1)[1:].as_strided((2,), (1,), 0), False),
    ],
)
def test_strides_of_tensors_that_lie_otherwise_are_refused(function, is_read):
    program = program_of(function, torch.ones(3, 4))
    assert (not refused_nodes(program)) == is_read


def test_sizes_that_vary_are_refused():
    class Doubled(torch.nn.Module):
        def forward(self, x):
            return x * 2

    sizes = {"x": {0: torch.export.Dim("batch", min=2)}}
    program = decompose(torch.export.export(Doubled(), (torch.ones(3, 2),), dynamic_shapes=sizes), "it")
    with refuses(WorkloadError):
        graph_of_program(program, "it")
