"""Read Relax modules as graphs."""

from __future__ import annotations

import numpy as np

from anatune.codegen.compat import TvmObject, convert_to_array, has_same_structure, import_tvm
from anatune.errors import WorkloadError
from anatune.network.graph.nodes import (
    WRITTEN,
    Argument,
    Constant,
    Graph,
    Input,
    Node,
    Scalar,
    Shape,
    TensorType,
    Value,
    select_result,
    tensor_type,
)

__all__ = ["graph_of"]

_PREFIX = "relax."


def graph_of(module: TvmObject, name: str = "main") -> Graph:
    """Return one function of a Relax module as a graph.

    Parameters
    ----------
    module : tvm.IRModule
        A module of operators that are not legalised; weights are constants.

    Raises
    ------
    WorkloadError
        The function does not exist, a tensor has a size that varies, or the function contains anything else than
        operators on tensors, such as branches or calls of other functions.
    """
    tvm = import_tvm()
    functions = {str(key.name_hint): one for key, one in module.functions_items()}
    function = functions.get(name)
    if function is None or type(function).__name__ != "Function":
        relax = [key for key, one in functions.items() if type(one).__name__ == "Function"]
        raise WorkloadError(
            f"the module has no Relax function {name} (it has {', '.join(relax) or 'none'}), expected the model there"
        )
    return _RelaxReader(tvm, function, functions).graph


class _RelaxReader:
    """Reads the bindings of a function in order."""

    def __init__(self, tvm: TvmObject, function: TvmObject, functions: dict[str, TvmObject]) -> None:
        self.tvm, self.functions = tvm, functions
        self.values: dict[int, Argument] = {}
        self.constants: dict[int, Constant] = {}
        inputs = []
        for parameter in function.params:
            kind = self.type_of(parameter.ty, f"input {parameter.name}")
            if not isinstance(kind, TensorType):
                raise WorkloadError(f"input {parameter.name} is a tuple, expected a tensor; pass its parts")
            model_input = Input(str(parameter.name), kind)
            self.values[parameter.id_] = model_input
            inputs.append(model_input)
        body = function.body
        for block in body.blocks:
            for binding in block.bindings:
                if type(binding).__name__ == "MatchCast":
                    self.values[binding.var.id_] = self.argument(binding.value)
                else:
                    self.values[binding.var.id_] = self.read_binding(binding.value)
        result = self.argument(body.body)
        is_tuple = isinstance(result, tuple)
        outputs = result if isinstance(result, tuple) else (result,)
        if not all(isinstance(value, Value) and isinstance(value.type, TensorType) for value in outputs):
            raise WorkloadError("the model returns nested tuples or shapes, expected tensors")
        self.graph = Graph(tuple(inputs), outputs, is_tuple=is_tuple)

    def type_of(self, kind: TvmObject, what: str) -> TensorType | tuple[TensorType, ...]:
        """Return a Relax type as a graph's.

        Raises
        ------
        WorkloadError
            It is not a tensor of known sizes; `what` begins the message.
        """
        name = type(kind).__name__
        if name.startswith("Tuple"):
            fields = tuple(self.type_of(field, what) for field in kind.fields)
            if all(isinstance(one, TensorType) for one in fields):
                return fields  # type: ignore[return-value]
            raise WorkloadError(f"{what} is a tuple of tuples, expected tensors")
        if not name.startswith("Tensor"):
            raise WorkloadError(f"{what} is a {name}, expected a tensor")
        sizes = getattr(kind.shape, "values", None)
        if sizes is None:
            raise WorkloadError(f"{what} has no known shape, expected fixed sizes; export it with example inputs")
        shape = []
        for axis, size in enumerate(sizes):
            if not hasattr(size, "value"):
                raise WorkloadError(
                    f"{what} is dynamic along axis {axis} ({size}), expected fixed sizes; give example inputs of the "
                    "sizes to compile for, and export without dynamic shapes"
                )
            shape.append(int(size.value))
        return TensorType(tuple(shape), str(kind.dtype))

    def read_binding(self, value: TvmObject) -> Argument:
        """Return the value that a binding computes."""
        kind = type(value).__name__
        if kind != "Call":
            return self.argument(value)
        op = value.op
        if not isinstance(op, self.tvm.ir.Op):
            raise WorkloadError(f"the model calls {op}, expected operators of Relax; inline its functions first")
        name = str(op.name)
        if name == "relax.call_tir":
            return self.read_loop_nest(value)
        if name in ("relax.call_packed", "relax.call_dps_packed", "relax.call_pure_packed"):
            raise WorkloadError(f"the model has {name}: it is lowered already, expected operators; pass it before that")
        attributes, kind = _attributes(value.attrs)
        if name == "relax.take" and attributes["mode"] == "fast":  # reads what lies beyond: ids may be wrong
            attributes["mode"] = "clip"
        arguments = tuple(self.argument(one) for one in value.args)
        if name == "relax.shape_of":  # as ONNX files ask for sizes: they are known here
            return Shape(tensor_type(arguments[0]).shape)
        if name == "relax.shape_to_tensor":
            return Constant(np.array(arguments[0], np.int64))
        return Node(
            name.removeprefix(_PREFIX), arguments, self.type_of(value.ty, f"the result of {name}"), attributes, kind
        )

    def read_loop_nest(self, value: TvmObject) -> Node:
        """Return an operator that the importer wrote as a loop nest.

        Raises
        ------
        WorkloadError
            Its sizes are not fixed.
        """
        name = str(value.args[0].name_hint)
        kind = self.type_of(value.ty, f"the result of {name}")
        operands = self.argument(value.args[1])
        function = self.functions[name]
        if (
            len(value.args) > 2
            or not isinstance(kind, TensorType)
            or not all(isinstance(operand, Value) for operand in operands)
        ):
            raise WorkloadError(f"the model has {name} of sizes that are known only at run time, expected fixed sizes")
        word = self.match_binary(function, operands, kind)
        return Node(word, operands, kind) if word else Node(f"{WRITTEN}{name}", operands, kind, {"function": function})

    def match_binary(self, function: TvmObject, operands: tuple[Value, ...], kind: TensorType) -> str:
        """Return the binary operator that a loop nest computes; "" if there is none.

        TVM's ONNX importer writes Clip as such nests; as operators they can be fused into the node before.
        """
        if len(operands) != 2:
            return ""
        from tvm import relax, topi

        builder = relax.BlockBuilder()
        kinds = [relax.TensorType(tensor_type(operand).shape, tensor_type(operand).dtype) for operand in operands]
        first, second = (relax.Var(f"v{place}", one) for place, one in enumerate(kinds))
        with builder.function("main", [first, second]):
            candidates = {word: builder.emit_te(getattr(topi, word), first, second) for word in ("maximum", "minimum")}
            builder.emit_func_output(relax.Tuple(list(candidates.values())))
        built_functions = {str(key.name_hint): one for key, one in builder.get().functions_items()}
        return next((word for word in candidates if has_same_structure(built_functions[word], function)), "")

    def argument(self, value: TvmObject) -> Argument:
        """Return an argument, or the value that a binding renames."""
        kind = type(value).__name__
        if kind in ("Var", "DataflowVar"):
            return self.values[value.id_]
        if kind == "GenericConst":
            return self.constant(value.value)
        if kind == "Tuple":
            return tuple(self.argument(field) for field in value.fields)
        if kind == "TupleGetItem":
            owner, index = self.argument(value.tuple_value), int(value.index)
            return owner[index] if isinstance(owner, tuple) else select_result(owner, index)
        if kind == "ShapeExpr":
            return Shape(int(size) for size in value.values)
        if kind in ("IntImm", "FloatImm"):
            return Scalar(value.value, str(value.ty.dtype))
        raise WorkloadError(f"the model has a {kind}, expected tensors, shapes and numbers; export it without branches")

    def constant(self, tensor: TvmObject) -> Constant:
        """Return a constant; tensors that importers repeat are stored once."""
        constant = self.constants.get(tensor.data_ptr())
        if constant is None:
            constant = self.constants[tensor.data_ptr()] = Constant(convert_to_array(tensor))
        return constant


def _attributes(attributes: TvmObject) -> tuple[dict[str, TvmObject], str]:
    """Return the attributes of a call by name, and the name of their type."""
    if attributes is None:
        return {}, ""
    info = type(attributes).__tvm_ffi_type_info__
    return {field.name: _to_python(getattr(attributes, field.name)) for field in info.fields}, str(info.type_key)


def _to_python(value: TvmObject) -> TvmObject:
    """Return numbers, text and lists of them as Python's; other values stay."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = type(value).__name__
    if kind in ("Array", "list", "tuple"):
        items = [_to_python(one) for one in value]
        return tuple(items) if all(isinstance(one, bool | int | float | str) for one in items) else value
    if kind in ("dtype", "DataType"):
        return str(value)
    return value
