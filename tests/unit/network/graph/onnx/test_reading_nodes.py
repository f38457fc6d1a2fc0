"""Single nodes with any attributes: computed as onnxruntime does, or refused in one line."""

import zlib

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.network.graph.onnx.operators import READERS
from tests.unit.network.graph.onnx.one_node import model_of

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from tests.unit.network.graph.onnx.compared import by_onnxruntime, check_equal, computed  # noqa: E402
from tests.unit.network.graph.onnx.random_nodes import OPERANDS, OUTPUTS, attributes  # noqa: E402

NEWEST = 25
SEEDS = 3


def differs(op, attributes, opset):
    """Return whether onnxruntime is known to compute something else than the standard says."""
    return (
        (
            op.endswith("Pool")
            and attributes.get("dilations") == [2, 1]
            and attributes.get("auto_pad", "").startswith("SAME")
        )
        or attributes.get("sorted") == 0
        or (
            op == "Resize" and attributes.get("coordinate_transformation_mode") == "align_corners"
        )  # of fractional scales
    )


def schemas(op):
    """Return the versions of an operator, from the oldest that is read."""
    versions = {
        one.since_version for one in onnx.defs.get_all_schemas_with_history() if (one.domain, one.name) == ("", op)
    }
    for version in sorted({max(one, 7) for one in versions if one <= NEWEST}):
        yield version, onnx.defs.get_schema(op, version, "")


@pytest.mark.parametrize("op", OPERANDS)
def test_any_attributes(op):
    compared = 0
    for version, schema in schemas(op):
        for seed in range(SEEDS):
            rng = np.random.default_rng([seed, version, zlib.crc32(op.encode())])
            node_attributes = attributes(rng, schema, share=0.0 if seed == 0 else 0.6)
            operands = OPERANDS[op](rng, version, node_attributes)
            model = model_of(op, *operands, opset=version, outputs=OUTPUTS.get(op, 1), **node_attributes)
            want = None if differs(op, node_attributes, version) else by_onnxruntime(model)
            try:
                got = computed(model)
            except WorkloadError as error:
                assert want is None or "not supported" in str(error), (node_attributes, error)  # noqa: PT017
                continue
            if want is not None:
                compared += 1
                check_equal(got, want)
    assert compared or all(version > 17 for version, _ in schemas(op)) or op == "Scatter"


def test_most_operators_are_tried():
    constants = {name for domain, name in READERS if not domain}
    assert len(constants.intersection(OPERANDS)) > 140
