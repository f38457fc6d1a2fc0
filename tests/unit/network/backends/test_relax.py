"""The pipeline "anatune" of Relax: results are the original's, weights are packed beforehand."""

import numpy as np
import pytest

import anatune
from anatune.codegen.compat import lacks_feature
from anatune.errors import WorkloadError

tvm = pytest.importorskip("tvm")


def network(weight, *, second=False):
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(weight.shape[:1] * 2, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(relax.op.nn.relu(relax.op.matmul(x, relax.const(weight)))))
        builder.emit_func_output(out)
    if second:
        y = relax.Var("y", relax.TensorType((2,), "float32"))
        with builder.function("other", [y]):
            builder.emit_func_output(y)
    return builder.get()


def test_a_module_is_built_with_anatunes_kernels():
    from tvm import relax

    import anatune.network.backends.relax as adapter

    random = np.random.default_rng(0)
    weight, x = (random.standard_normal((32, 32)).astype(np.float32) for _ in range(2))
    found = relax.get_pipeline("anatune", threads=1)(network(weight))
    (code,) = found.attrs["external_mods"]
    assert "anatune_0" in code.inspect_source()
    built = relax.build(network(weight), adapter.target(threads=1), relax_pipeline=adapter.pipeline(threads=1))
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, np.maximum(x.astype(np.float64) @ weight, 0), rtol=0, atol=1e-5)


def computes_largest(op, x, _):
    return op.maximum(x, relax_constant(0.5)), lambda x, _: np.maximum(x, np.float32(0.5))


def computes_turned_rows(op, x, places):
    rows = op.flip(op.reshape(op.take(x, places, axis=1), (34,)), axis=0)
    return rows, lambda x, places: x[:, places].reshape(-1)[::-1]


def computes_tail(op, x, _):
    return op.sinh(op.multiply(x, relax_constant(1e-6))), lambda x, _: np.sinh(x * np.float64(1e-6))


def relax_constant(value):
    from tvm import relax

    return relax.const(value, "float32")


@pytest.mark.parametrize("compute", [computes_largest, computes_turned_rows, computes_tail])
def test_functions_of_loops_have_the_passes_of_networks(compute):
    """NaN in maxima, indices that TVM simplifies wrongly, formulas near 0: as in a network that anatune compiles."""
    from tvm import relax

    import anatune.network.backends.relax as adapter

    x, places = relax.Var("x", relax.TensorType((2, 17), "float32")), relax.Var("i", relax.TensorType((17,), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, places]):
        with builder.dataflow():
            value, reference = compute(relax.op, x, places)
            out = builder.emit_output(builder.emit(value))
        builder.emit_func_output(out)
    built = relax.build(builder.get(), adapter.target(threads=1), relax_pipeline="anatune")
    given = np.random.default_rng(0).standard_normal((2, 17)).astype(np.float32), np.arange(17)[::-1].copy()
    given[0][0, 3] = np.nan
    got = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, given)).numpy()
    np.testing.assert_allclose(got, reference(*given), rtol=1e-6, atol=0)


def test_a_target_without_the_cpus_instructions_is_refused():
    from tvm import relax

    import anatune.network.backends.relax as adapter

    if not lacks_feature(tvm.target.Target("llvm"), anatune.hardware("host")):
        pytest.skip("plain code runs the kernels of this CPU")
    with pytest.raises(RuntimeError, match=r"build for anatune\.adapters\.relax\.target"):
        relax.build(network(np.eye(8, dtype=np.float32)), "llvm", relax_pipeline=adapter.pipeline(threads=1))


def test_other_functions_are_refused():
    import anatune.network.backends.relax as adapter

    with pytest.raises((RuntimeError, WorkloadError), match="other"):
        adapter.pipeline(threads=1)(network(np.eye(8, dtype=np.float32), second=True))
