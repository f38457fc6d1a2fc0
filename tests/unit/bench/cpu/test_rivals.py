"""What the libraries print of their own times."""

import pytest

from bench.cpu import rivals

PRINTED = """onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71)
onednn_verbose,v1,primitive,create:cache_miss,cpu,convolution,brg_conv_fwd:avx512_core,forward,src:f32,,,mb1,1.10791
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32 dst:f32,attr-scratchpad:user,,1x64x56x56,0.0688477
onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx512_core,forward,src:f32,,alg:x,mb1_ic64,1.09302
onednn_verbose,primitive,exec,cpu,inner_product,brg_matmul:avx512_core,forward,src:f32,,,mb512ic1024oc1024,15.998
MKL_VERBOSE SGEMM_PACK(A,T,1024,512,1024,0x7ffd,0x7fee,1024,0x7fee) 2.85us CNR:OFF Dyn:0 FastMM:1 TID:0  NThr:1
MKL_VERBOSE SGEMM_COMPUTE(P,N,1024,512,1024,0x7f,1024,0x7f,1024,0x7f,0x55,1024) 11.41ms CNR:OFF Dyn:0 FastMM:1 TID:0
"""


def test_kernel_times_leave_out_reorders_packing_and_creation():
    assert [(name, pytest.approx(seconds)) for name, seconds in rivals.kernel_times_s(PRINTED)] == [
        ("brg_conv_fwd:avx512_core", 1.09302e-3),
        ("brg_matmul:avx512_core", 15.998e-3),
        ("mkl", 11.41e-3),
    ]


def test_variants_far_from_the_best_of_their_kind_are_dropped():
    times = {"torch:nhwc": 1.0, "torch:nchw": 2.0, "onednn:nhwc": 0.9, "onednn:blocked": 0.95, "mkl:packed": 5.0}
    methods = {name: lambda seconds=seconds: seconds for name, seconds in times.items()}
    assert set(rivals.best_variants(methods)) == set(times) - {"torch:nchw"}
