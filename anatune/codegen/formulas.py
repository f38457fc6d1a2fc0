"""Elementary functions of float32 in TVM's code as formulas in LLVM IR; TVM's own are calls of C's library.

They are functions that LLVM inlines, not expressions of TVM: whose simplifier writes a name's value out wherever the
name is read, so that a function of a function took a minute to compile.
"""

from __future__ import annotations

from collections.abc import Iterable

from anatune.emit.elementary import FORMULAS, FUNCTIONS
from anatune.emit.kernels import Function
from anatune.emit.llvm import LlvmCode
from anatune.untyped import TvmObject

__all__ = ["with_formulas"]


def with_formulas(tvm: TvmObject, module: TvmObject) -> TvmObject:
    """Return a module of lowered functions whose functions of float32, and of vectors of it, are formulas."""
    import tvm_ffi

    tirx = tvm.tirx
    needed: dict[str, Function] = {}

    def called(call: TvmObject) -> TvmObject:
        name, kind = str(getattr(call.op, "name", "")).rpartition(".")[2], str(call.ty)
        if name not in FORMULAS or len(call.args) != 1 or kind.partition("x")[0] != "float32":
            return call
        lanes = int(kind.partition("x")[2] or 1)
        own = f"anatune_{name}_{lanes}"
        if own not in needed:
            needed[own] = _function(name, own, lanes)
        return tirx.call_pure_extern(kind, own, call.args[0])

    for name, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            needed.clear()
            body = tvm_ffi.structural_map(function.body, [(tvm.ir.Call, called)])
            if needed:
                text = tvm.ir.StringImm(_module(needed.values()))
                body = tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", text, body)
                module[name] = function.with_body(body)
    return module


def _module(functions: Iterable[Function]) -> str:
    """Return functions with what they declare, each declaration once."""
    texts, declared = zip(*functions, strict=True)
    return "\n".join([*sorted(set().union(*declared)), *texts, ""])


def _function(name: str, own: str, lanes: int) -> Function:
    """Return a formula as a function of a number or of a vector."""
    code = LlvmCode(lanes, "float32", "add")
    kind = "float" if lanes == 1 else code.vector
    code.line(f"define internal {kind} @{own}({kind} %x) alwaysinline nounwind {{")
    code.line("entry:")
    given = code.emit(f"insertelement {code.vector} poison, float %x, i64 0") if lanes == 1 else "%x"
    value = FUNCTIONS[name](code, given)
    if lanes == 1:
        value = code.emit(f"extractelement {code.vector} {value}, i64 0")
    code.line(f"  ret {kind} {value}")
    code.line("}")
    return "\n".join(code.lines), code.declared
