"""Schedules of products in the template "triton" as the text of a Python module.

`product` writes the module with the help of the others: `sizes` (numbers of the schedule), `indices` and `lines`
(addresses), `descriptors` (TMA), `steps` (epilogue), `parts` (the kernel that adds up parts of sums), `module` (text
around the kernels). `kernel` has the result: the source and its launches.
"""

from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram
from anatune.templates.triton.program.product import triton_program

__all__ = ["TritonKernel", "TritonProgram", "triton_program"]
