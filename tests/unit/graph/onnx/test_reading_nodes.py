"""Single nodes with any attributes: computed as onnxruntime does, or refused in one line."""

import zlib

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.graph.nodes import Constant
from anatune.graph.onnx.operators import READERS
from tests import naive_graph
from tests.unit.graph.onnx.one_node import model_of, read

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from tests.unit.graph.onnx.random_nodes import OPERANDS, OUTPUTS, attributes  # noqa: E402

NEWEST = 22
SEEDS = 3


def differs(op, own, opset):
    """Whether onnxruntime is known to compute something else than the standard says."""
    return (
        (op.endswith("Pool") and own.get("dilations") == [2, 1] and own.get("auto_pad", "").startswith("SAME"))
        or own.get("sorted") == 0
        or (op == "Resize" and own.get("coordinate_transformation_mode") == "align_corners")  # of fractional scales
    )


def computed(model):
    """Return what is read of a model without inputs."""
    graph = read(model)
    if all(isinstance(value, Constant) for value in graph.outputs):
        return [value.array for value in graph.outputs]
    return [
        np.asarray(array).astype(value.type.dtype)
        for array, value in zip(naive_graph.run(graph), graph.outputs, strict=True)
    ]


def by_onnxruntime(model):
    """Return what onnxruntime computes; None: it cannot."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, {})
    except Exception:  # noqa: BLE001  of its C++
        return None


def check_equal(got, want):
    for one, other in zip(got, want, strict=False):  # operators may return fewer results than a node names
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        is_byte = one.dtype.kind in "iu" and one.dtype.itemsize == 1
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=1e-3, atol=1 if is_byte else 2e-4)


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
            own = attributes(rng, schema, share=0.0 if seed == 0 else 0.6)
            operands = OPERANDS[op](rng, version, own)
            model = model_of(op, *operands, opset=version, outputs=OUTPUTS.get(op, 1), **own)
            want = None if differs(op, own, version) else by_onnxruntime(model)
            try:
                got = computed(model)
            except WorkloadError as error:
                assert want is None or "not supported" in str(error), (own, error)  # noqa: PT017
                continue
            if want is not None:
                compared += 1
                check_equal(got, want)
    assert compared or all(version > 17 for version, _ in schemas(op)) or op == "Scatter"


def test_most_operators_are_tried():
    known = {name for domain, name in READERS if not domain}
    assert len(known.intersection(OPERANDS)) > 140
