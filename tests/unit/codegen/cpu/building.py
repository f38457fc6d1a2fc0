"""Programs in TVMScript and LLVM IR as functions of arrays."""

import numpy as np


def built(program, shape, threads=1):
    """Return (the function in TVMScript, the LLVM IR it calls) as a function of arrays that returns (shape) float32."""
    import tvm

    from anatune import api
    from anatune.codegen.compat import compile_module, parse_program, target_of

    function = parse_program(*program).with_attr("global_symbol", "kernel")
    code = compile_module(tvm.IRModule({"kernel": function}), target_of(api.hardware("host"), threads=threads))

    def call(*arrays):
        result = tvm.runtime.tensor(np.full(shape, np.nan, np.float32))
        code["kernel"](*(tvm.runtime.tensor(array) for array in arrays), result)
        return result.numpy()

    return call
