"""Elementary functions as Triton: near zero and in their tails, beside float64."""

import numpy as np
import pytest

pytest.importorskip("tvm", reason="operators are written as loops by TVM")
pytest.importorskip("triton", reason="kernels run in Triton's interpreter")
from scipy import special

from anatune.network.graph import building
from tests.unit.network.relax.device.running import graph_of, lower, run

SIZES = np.float32([0, 1e-30, 1e-8, 3e-6, 1e-4, 0.03, 0.3, 0.49, 0.51, 0.9, 1.1, 2.5, 4, 5.5, 8, 12, 20])
X = np.concatenate([SIZES, -SIZES])
FUNCTIONS = {
    "cosh": np.cosh, "erfc": special.erfc, "exp2": np.exp2, "expm1": np.expm1, "log1p": np.log1p, "log2": np.log2,
    "log10": np.log10, "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)), "nn.gelu": lambda x: x * special.ndtr(x),
    "nn.gelu_tanh": lambda x: x * special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)),
    "nn.silu": lambda x: x * special.expit(x), "sigmoid": special.expit, "sinh": np.sinh, "tanh": np.tanh,
    "copysign": lambda x: np.copysign(x, -np.flip(x)), "hypot": lambda x: np.hypot(x, -np.flip(x)),
}  # fmt: skip


def test_elementary_functions_are_near_float64():
    def make(x, y):
        return tuple(
            building.elementwise(name, *((x, y) if name in ("copysign", "hypot") else (x,))) for name in FUNCTIONS
        )

    graph = graph_of(make, (X.shape, "float32"), (X.shape, "float32"))
    results = run(graph, lower(graph), [X, -np.flip(X)])
    for (name, function), got in zip(FUNCTIONS.items(), results, strict=True):
        with np.errstate(all="ignore"):
            want = function(X.astype(np.float64))
        is_normal = ~(np.abs(want) < 2.0**-126) | (want == 0)
        np.testing.assert_allclose(got[is_normal], want[is_normal], rtol=4e-5, err_msg=name)
