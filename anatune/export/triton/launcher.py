"""The Python file of an exported Triton schedule: its kernels, and a function that launches them."""

from __future__ import annotations

from anatune.codegen.arithmetic import KernelArithmetic, format_comment
from anatune.core.workload.nest import Workload
from anatune.emit.buffer import Buffer
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram

_LAUNCHER = '''

def run({parameters}):
    """Compute {title} and return {result}.

    Takes tensors of PyTorch on the device, contiguous; whatever else has DLPack is seen as such. What is left out is
    allocated.
    """
    {imports}

    def seen(name, tensor, shape, dtype):
        if tensor is None:
            return torch.empty(shape, dtype=dtype, device={first}.device)
        tensor = tensor if isinstance(tensor, torch.Tensor) else torch.from_dlpack(tensor)
        if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(
                f"{{name}} is {{tensor.dtype}} {{tuple(tensor.shape)}}, expected contiguous {{dtype}} {{shape}}"
            )
        return tensor

{seen}
{launches}
    return {result}
'''
_WITH_DESCRIPTORS = """
    def launch():
        # tensor descriptors lie in device memory; in a context of its own the caller's allocator stays
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device={first}.device))
    {launches}

    contextvars.copy_context().run(launch)"""


def launcher_text(
    workload: Workload, program: TritonProgram, arguments: tuple[Buffer, ...], arithmetic: KernelArithmetic
) -> str:
    """Return the text of the Python file.

    Parameters
    ----------
    arguments : tuple of Buffer
        The parameters of ``run``: operands, the result, a workspace. Result and workspace may be left out in a call.
    """
    launches, imports = "\n".join(map(_launch_line, program.kernels)), "import torch"
    if "make_tensor_descriptor" in program.source:
        launches = _WITH_DESCRIPTORS.format(first=arguments[0].tensor, launches=launches.replace("\n", "\n    "))
        imports = "import contextvars\n\n    import torch"
    comment = "\n".join(format_comment(line, "# ") for line in (arithmetic.sentences(),))
    return (
        f"# Made by anatune; it is not needed. Needs Triton and PyTorch.\n{comment}\n{program.source.rstrip()}\n"
        + _LAUNCHER.format(
            parameters=run_signature(program, arguments),
            title=workload.describe(),
            result=", ".join((program.result, *program.further)),
            first=arguments[0].tensor,
            seen="\n".join(map(_check_line, arguments)),
            launches=launches,
            imports=imports,
        )
    )


def run_signature(program: TritonProgram, arguments: tuple[Buffer, ...]) -> str:
    """Return the parameters of ``run`` as text, such as "A, B, C=None"."""
    optional_names = {
        program.result,
        *program.further,
        *(() if program.workspace is None else (program.workspace.tensor,)),
    }
    return ", ".join(f"{one.tensor}=None" if one.tensor in optional_names else one.tensor for one in arguments)


def _check_line(buffer: Buffer) -> str:
    """Return the line that checks a tensor."""
    name = buffer.tensor
    return f'    {name} = seen("{name}", {name}, {buffer.shape!r}, torch.{buffer.dtype})'


def _launch_line(kernel: TritonKernel) -> str:
    """Return the line that launches a kernel."""
    tensors = ", ".join(parameter.tensor for parameter in kernel.parameters)
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, **kernel.options}
    words = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return f"    {kernel.name}[({kernel.grid},)]({tensors}, {words})"
