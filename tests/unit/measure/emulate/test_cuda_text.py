"""CUDA C to C++: only what no macro can do, and never a line more or less."""

import pytest

from anatune.errors import RunError
from anatune.measure.emulate.cuda_text import cpp_source
from anatune.templates.gpu.kernel import CudaKernel
from tests.wording import refuses


def rewritten(source, **settings):
    text = cpp_source(CudaKernel("", "k", source + "\nvoid k();", "sm_86", (), "y", 1, 1), "", traced=False, **settings)
    start = text.index('#line 1 "kernel.cu"\n') + len('#line 1 "kernel.cu"\n')
    return text[start : text.index("\nvoid k();")]


@pytest.mark.parametrize(
    ("cuda", "cpp"),
    [
        ("__shared__ float s[8];", 'float* s = (float*)shim_shared(1, "s", sizeof(float) * (8));'),
        (
            "__shared__ alignas(64) float4 s[2][8 * 4];",
            'float4 (*s)[8 * 4] = (float4 (*)[8 * 4])shim_shared(1, "s", sizeof(float4) * (2) * (8 * 4));',
        ),
        (
            "  __shared__ __align__(16) signed char s[8];",
            '  signed char* s = (signed char*)shim_shared(1, "s", sizeof(signed char) * (8));',
        ),
        ("extern __shared__ alignas(64) uchar s[];", 'uchar* s = (uchar*)shim_dynamic_shared("s");'),
        ('asm volatile("a.b.c;");', "{ ptx_a_b_c(); };"),
        ('asm("a.b::c %0, [%1], %2;" : "=r"(x) : "r"(f(y, 1)), "n"(4));', "{ ptx_a_b__c((x), (f(y, 1)), (4)); };"),
        ('asm("m {%0, %1}, {%2}, [%1 + 16];" : "+f"(a), "=f"(b) : "r"(c));', "{ ptx_m((a), (b), (c), (b) + 16); };"),
        (
            'asm volatile("{ .reg .pred p; @!p a %0; @p b; }" :: "r"(x));',
            "{ { bool p; if (!p) ptx_a((x)); if (p) ptx_b(); } };",
        ),
        ('__asm__ __volatile__("a;"\n"b; // no"\n:::"memory");', "{ ptx_a(); ptx_b(); }\n\n;"),
        ('x = ")"; asm("a;" : : "l"(")"[0]));', 'x = ")"; { ptx_a(); };'),
        ("#include <cuda_fp16.h>\nint i;", "\nint i;"),
    ],
)  # fmt: skip
def test_rewriting(cuda, cpp):
    assert rewritten(cuda) == cpp
    assert cpp.count("\n") == cuda.count("\n")


def test_arrays_have_slots_of_their_own():
    text = rewritten("__shared__ int a[1];\n__shared__ int b[1];")
    assert 'shim_shared(1, "a"' in text
    assert 'shim_shared(2, "b"' in text


def test_local_arrays_of_the_kernel_are_filled():
    kernel = CudaKernel(
        "", "k", "struct s { int a[2]; };\nvoid k() {\n  alignas(64) float a[8];\n  a[0] = 1;\n}", "", (), "y", 1, 1
    )
    text = cpp_source(kernel, "", traced=False)
    assert "int a[2]; };" in text
    assert "  alignas(64) float a[8]; SHIM_FILL(a)\n  a[0] = 1;\n" in text


def test_headers_and_architecture_are_told():
    kernel = CudaKernel("", "k", "#include <cuda_bf16.h>\n#include <cstdint>\nvoid k();", "sm_90", (), "y", 1, 1)
    text = cpp_source(kernel, '#include "shim.h"', traced=True)
    before = text[: text.index('#include "shim.h"')].split("\n")
    assert before[:3] == ["#define __CUDA_ARCH__ 900", "#define SHIM_CSTDINT", "#define SHIM_CUDA_BF16"]
    assert "shim_traced = 1" in text


@pytest.mark.parametrize("cuda", ["__shared__ float s[4], t[4];", 'asm(".reg .b8 r; a;");', 'asm("a;"'])
def test_what_is_not_understood(cuda):
    with refuses(RunError):
        rewritten(cuda)
