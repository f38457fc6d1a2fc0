"""Programs in TVMScript and LLVM IR as functions of arrays."""

import numpy as np

_BEHIND = 64
"""Elements behind a result that nothing may write."""


def built(program, shape, threads=1):
    """Return (the function in TVMScript, the LLVM IR it calls) as a function of arrays that returns (shape) float32."""
    call = built_for_sizes(program, threads)
    return lambda *arrays: call(shape, *arrays)


def built_for_sizes(program, threads=1, *, by_reference=False):
    """Return such a program as a function of a result's shape, arrays, and symbols by name, that returns the result.

    `by_reference`: arrays are read where they lie, multiples of 64 bytes.
    """
    import tvm

    from anatune import api
    from anatune.codegen.compat import compile_module, parse_program, target_of

    function = parse_program(*program).with_attr("global_symbol", "kernel")
    code = compile_module(tvm.IRModule({"kernel": function}), target_of(api.hardware("host"), threads=threads))

    def call(shape, *arrays, **symbols):
        size = int(np.prod(shape))
        memory = np.full(size + 2 * _BEHIND, np.nan, np.float32)
        memory = memory[-(memory.ctypes.data // 4) % 16 :]  # TVM asks for 64 bytes
        result = tvm.runtime.from_dlpack(memory[:size].reshape(shape))
        tensor = tvm.runtime.from_dlpack if by_reference else tvm.runtime.tensor
        code["kernel"](*map(tensor, arrays), *(symbols[name] for name in sorted(symbols)), result)
        assert np.isnan(memory[size:]).all()
        return memory[:size].reshape(shape)

    return call
