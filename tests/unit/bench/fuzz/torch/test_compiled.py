"""What PyTorch's own compiler does otherwise than eager PyTorch."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from bench.fuzz.torch.cases import module_of
from bench.fuzz.torch.compiled import CompileBuilder, _called, _structure, _traced_structure


@pytest.mark.filterwarnings("ignore")
def test_strides_of_what_pytorch_decomposes():
    builder = CompileBuilder(0)
    places = builder.indices((4, 5), 0, 3, weight=False)
    builder.call("F.one_hot({0}, 3).to({T})", places)
    program = builder.finished()
    program = replace(program, settings={**program.settings, "layouts": {places: "transposed"}, "edits": []})
    module = module_of(program)
    ((inputs, results), *_) = _called(program, module, module)
    assert _structure(inputs, results) == ["own memory, strides [15, 3, 1]"]
    assert _traced_structure(program, 0, program.outputs[0]) == "own memory, strides [3, 12, 1]"
