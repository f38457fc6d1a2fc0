"""Compilation of functions to object code by numba. Nothing imports this module but `_jit`, where code is missing.

numba lowers each function to LLVM IR. It would then optimise each function, link it into its callers and optimise these
as a whole again, down to machine code, at each level of the calls. Here functions are only linked, and the entry is
optimised once, with all that it calls. Memory is not counted (`_nrt`): the code allocates none, so that arrays that are
passed on cost nothing. 1/0 is inf, not an exception (`error_model`), so that loops vectorise. Without fastmath,
compiled and interpreted runs agree to the last bit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache
from typing import Protocol, cast

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba.core import codegen, compiler, event, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.cpu import CPUContext
from numba.core.datamodel.manager import DataModelManager
from numba.core.dispatcher import Dispatcher
from numba.core.funcdesc import FunctionDescriptor
from numba.core.registry import cpu_target
from numba.core.typing.templates import AttributeTemplate, Signature
from numba.extending import infer_getattr, lower_getattr_generic, models, register_model
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import from_dtype

from anatune.numerics._machine_code import ENTRY, MachineCode

_INT = ir.IntType(64)
_PASSES = (
    "TranslateByteCode", "FixupArgs", "IRProcessing", "GenericRewrites", "ReconstructSSA", "NopythonTypeInference",
    "PreLowerStripPhis", "IRLegalization", "AnnotateTypes", "NativeLowering", "NoPythonBackend",
)  # fmt: skip


class _Pipeline(compiler.CompilerBase):  # type: ignore[misc]
    """The passes of numba that plain loops over numbers and arrays need."""

    def define_pipelines(self) -> list[PassManager]:
        """Return numba's passes without those for closures, literals, inlining and expressions of arrays."""
        manager = PassManager("nopython")
        for kind, text in compiler.DefaultPassBuilder.define_nopython_pipeline(self.state).passes:
            if kind.__name__ in _PASSES:
                manager.add_pass(kind, text)
        manager.finalize()
        return [manager]


class CompilationWatcher(Protocol):
    """Receives the names of functions that are compiled; those that a function calls come before its end."""

    def on_start(self, name: str) -> None:
        """Take the begin of a function."""

    def on_end(self) -> None:
        """Take the end of the function that began last."""


class _Compiled(Protocol):
    """The result of numba's compilation, in part."""

    signature: Signature
    fndesc: FunctionDescriptor
    library: _Library


def make_dispatcher(function: Callable[..., object], *, is_inlined: bool) -> Dispatcher[Callable[..., object]]:
    """Return the object by which numba compiles a function."""
    return numba.njit(  # type: ignore[call-overload, no-any-return]
        error_model="numpy", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=is_inlined,
        pipeline_class=_Pipeline,
    )(function)  # fmt: skip


def compile_object(
    dispatcher: Dispatcher[Callable[..., object]], arguments: tuple[object, ...], watchers: list[CompilationWatcher]
) -> MachineCode:
    """Compile a function, given its dispatcher, for arguments of these types."""
    context = cpu_target.target_context
    argument_types = tuple(_type_of(argument) for argument in arguments)
    with global_compiler_lock, event.install_listener("numba:compile", _Listener(watchers)):
        usual, context._internal_codegen = context._internal_codegen, _codegen()
        typing, collects = cpu_target.typing_context, gc.isenabled()
        gc.disable()  # a tenth of the time
        typing.resolve_function_type = _remember(typing.resolve_function_type)
        try:
            dispatcher.compile(argument_types)
            compiled = cast("_Compiled", dispatcher.overloads[argument_types])
            library = _codegen().create_library(ENTRY)
            library.add_linking_library(compiled.library)
            return MachineCode(_add_entry(context, library, compiled), library.emit_object())
        finally:
            context._internal_codegen = usual
            del typing.resolve_function_type
            if collects:
                gc.enable()


class _Listener(event.Listener):  # type: ignore[misc]
    """Passes the begin and the end of each function on."""

    def __init__(self, watchers: list[CompilationWatcher]) -> None:
        self._watchers = watchers

    def on_start(self, event: event.Event) -> None:
        function = event.data["dispatcher"].py_func
        for watcher in self._watchers:
            watcher.on_start(f"{function.__module__}.{function.__qualname__}")

    def on_end(self, event: event.Event) -> None:
        for watcher in self._watchers:
            watcher.on_end()


def _remember(resolve: Callable[..., object]) -> Callable[..., object]:
    """Return numba's search for the types of a call, which remembers what it found."""
    signatures: dict[object, object] = {}

    def find(function: object, arguments: tuple[types.Type, ...], keywords: dict[str, object]) -> object:
        if isinstance(function, types.Dispatcher):  # one compilation for all constants
            return resolve(function, tuple(types.unliteral(kind) for kind in arguments), keywords)
        if keywords:
            return resolve(function, arguments, keywords)
        if (function, arguments) not in signatures:
            signatures[function, arguments] = resolve(function, arguments, keywords)
        return signatures[function, arguments]

    return find


class _Record(types.Type):  # type: ignore[misc]
    """A named tuple of an argument: the address of its packed fields, which compiled code reads when it uses them."""

    def __init__(self, value: tuple[object, ...]) -> None:
        self.fields: dict[str, tuple[types.Type, int]] = {}
        self.slots = 0
        for field, part in zip(type(value)._fields, value, strict=True):  # type: ignore[attr-defined]
            kind = _type_of(part)
            self.fields[field] = kind, self.slots
            self.slots += _num_slots(kind)
        kinds = ", ".join(str(kind) for kind, _ in self.fields.values())
        super().__init__(f"{type(value).__module__}.{type(value).__qualname__}({kinds})")


@register_model(_Record)
class _RecordModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: DataModelManager, kind: _Record) -> None:
        super().__init__(manager, kind, _INT.as_pointer())


@infer_getattr
class _RecordFields(AttributeTemplate):  # type: ignore[misc]
    key = _Record

    def generic_resolve(self, record: _Record, name: str) -> types.Type | None:  # type: ignore[override]
        return record.fields[name][0] if name in record.fields else None


@lower_getattr_generic(_Record)  # type: ignore[untyped-decorator]
def _read_field(context: CPUContext, builder: ir.IRBuilder, record: _Record, address: ir.Value, name: str) -> ir.Value:
    kind, slot = record.fields[name]
    return _read(context, builder, kind, address, slot)


def _type_of(value: object) -> types.Type:
    """Return the type of an argument; see `_jit._pack`, which tells the same types apart."""
    if isinstance(value, np.ndarray):
        return types.Array(from_dtype(value.dtype), value.ndim, "C" if value.flags.c_contiguous else "A")
    if isinstance(value, tuple):
        return _Record(value)
    if isinstance(value, bool | np.bool_):
        return types.boolean
    return types.int64 if isinstance(value, int | np.integer) else types.float64


def _num_slots(kind: types.Type) -> int:
    """Return how many 8-byte numbers `_jit._pack` writes for a value."""
    return kind.slots if isinstance(kind, _Record) else 1 + 2 * kind.ndim if isinstance(kind, types.Array) else 1


def _read(context: CPUContext, builder: ir.IRBuilder, kind: types.Type, address: ir.Value, slot: int) -> ir.Value:
    """Read a value of some type from the numbers at `address`, beginning with number `slot`; they never change."""

    def load(number: int, kind: ir.Type) -> ir.Value:
        pointer = builder.gep(address, [_INT(slot + number)])
        value = builder.load(builder.bitcast(pointer, kind.as_pointer()))
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value

    if isinstance(kind, _Record):
        return builder.gep(address, [_INT(slot)])
    if isinstance(kind, types.Array):
        array = make_array(kind)(context, builder)
        numbers = [load(number, _INT) for number in range(1, 1 + 2 * kind.ndim)]
        item_bytes = _INT(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
        populate_array(array, load(0, array.data.type), numbers[: kind.ndim], numbers[kind.ndim :], item_bytes, None)
        return array._getvalue()
    if kind == types.float64:
        return load(0, ir.DoubleType())
    number = load(0, _INT)
    return builder.icmp_signed("!=", number, _INT(0)) if kind == types.boolean else number


def _add_entry(context: CPUContext, library: _Library, compiled: _Compiled) -> str:
    """Add an entry that calls a compiled function, i32 (arguments, results); return the format of the results."""
    module = library.create_ir_module(ENTRY)
    pointer = _INT.as_pointer()
    entry = ir.Function(module, ir.FunctionType(ir.IntType(32), [pointer, pointer]), ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    values, slot = [], 0
    for kind in compiled.signature.args:
        values.append(_read(context, builder, kind, entry.args[0], slot))
        slot += _num_slots(kind)
    returned = compiled.signature.return_type
    callee = context.declare_function(module, compiled.fndesc)
    status, result = context.call_conv.call_function(builder, callee, returned, compiled.signature.args, values)
    kinds = () if returned == types.none else getattr(returned, "types", (returned,))
    formats = ""
    for number, kind in enumerate(kinds):
        value = builder.extract_value(result, number) if len(kinds) > 1 else result
        target = builder.gep(entry.args[1], [_INT(number)])
        builder.store(value, builder.bitcast(target, value.type.as_pointer()))
        formats += {types.float64: "d", types.int64: "q"}[kind]
    builder.ret(status.code)
    library.add_ir_module(module)
    return formats


class _Library(codegen.CPUCodeLibrary):  # type: ignore[misc]
    """The IR of a function. It is not optimised, and has no machine code."""

    def add_llvm_module(self, ll_module: llvm.ModuleRef) -> None:
        self._final_module.link_in(ll_module)

    def finalize(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    def _all_modules(self, seen: set[int]) -> Iterator[llvm.ModuleRef]:
        """Yield the IR of the function and of all that it calls, once."""
        seen.add(id(self))
        yield self._final_module.clone()
        for library in self._linking_libraries:
            if id(library) not in seen:
                if isinstance(library, _Library):
                    yield from library._all_modules(seen)
                else:
                    seen.add(id(library))
                    yield library._get_module_for_linking().clone()

    def _link_modules(self) -> llvm.ModuleRef:
        module = llvm.parse_assembly(str(self._codegen._create_empty_module(self.name)))
        for part in self._all_modules(set()):
            module.link_in(part)
        return module

    def _get_module_for_linking(self) -> llvm.ModuleRef:
        """Return the IR for other compiled functions of this process, as numba links functions such as `max`."""
        if self._shared_module is None:
            self._shared_module = _set_linkage(self._link_modules(), "linkonce_odr")
        return self._shared_module

    def emit_object(self) -> bytes:
        """Return the object code of the entry."""
        module = _set_linkage(self._link_modules(), "internal")
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization, options.loop_unrolling = True, False  # loops are unrolled where they are vectorised
        builder = llvm.create_pass_builder(self._codegen._tm, options)
        builder.getModulePassManager().run(module, builder)
        return self._codegen._tm.emit_object(module)  # type: ignore[no-any-return]


def _set_linkage(module: llvm.ModuleRef, linkage: str) -> llvm.ModuleRef:
    for function in module.functions:
        if not function.is_declaration and function.name != ENTRY:
            function.linkage = linkage
    return module


class _Codegen(codegen.JITCPUCodegen):  # type: ignore[misc]
    """The code generator of `_Library`, for code that other processes load, too."""

    _library_class = _Library  # type: ignore[assignment]

    def _customize_tm_options(self, options: dict[str, object]) -> None:
        super()._customize_tm_options(options)
        options.update(reloc="pic", codemodel="small", jit=False)

    def set_env(self, env_name: str, env: object) -> None:
        """Ignore the environment, which only code that uses Python objects needs."""


@cache
def _codegen() -> _Codegen:
    return _Codegen("anatune")
