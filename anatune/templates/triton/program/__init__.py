"""A schedule of the template "triton" as the text of a Python module."""

from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram
from anatune.templates.triton.program.product import triton_program

__all__ = ["TritonKernel", "TritonProgram", "triton_program"]
