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

    import anatune.adapters.relax as adapter

    random = np.random.default_rng(0)
    weight, x = (random.standard_normal((32, 32)).astype(np.float32) for _ in range(2))
    found = relax.get_pipeline("anatune", threads=1)(network(weight))
    assert any(name.name_hint.startswith("anatune_0") for name in found.functions)
    built = relax.build(network(weight), adapter.target(threads=1), relax_pipeline=adapter.pipeline(threads=1))
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, np.maximum(x.astype(np.float64) @ weight, 0), rtol=0, atol=1e-5)


def test_a_target_without_the_cpus_instructions_is_refused():
    from tvm import relax

    import anatune.adapters.relax as adapter

    if not lacks_feature(tvm.target.Target("llvm"), anatune.hardware("host")):
        pytest.skip("plain code runs the kernels of this CPU")
    with pytest.raises(RuntimeError, match=r"build for anatune\.adapters\.relax\.target"):
        relax.build(network(np.eye(8, dtype=np.float32)), "llvm", relax_pipeline=adapter.pipeline(threads=1))


def test_other_functions_are_refused():
    import anatune.adapters.relax as adapter

    with pytest.raises((RuntimeError, WorkloadError), match="the function other, expected main alone"):
        adapter.pipeline(threads=1)(network(np.eye(8, dtype=np.float32), second=True))
