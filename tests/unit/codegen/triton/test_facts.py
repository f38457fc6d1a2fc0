"""What is read from the texts of Triton's compilers."""

from anatune.codegen.triton.facts import count_matrix_instructions, read_amd_facts, read_nvidia_facts
from anatune.core.compiler_facts import CompilerFacts
from anatune.errors import BuildError
from tests.wording import refuses

PTX = """
\t// wgmma.mma_async is spoken of only
\twgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {%r1,%r2}, %rd1, %rd2, p, 1, 1, 0, 1;
\tmma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 { %r1 }, { %r2 };
\tmma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 { %r1 }, { %r2 };
\t@%p1 tcgen05.mma.cta_group::1.kind::f16 [ %r1 + 0 ], %rd1, %rd2, %r3, %p2;
\t@%p3 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];
\tcp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
"""
AMD = """
\tv_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]
\tv_mfma_f32_32x32x8_f16 v[0:15], v[20:21], v[22:23], v[0:15]
; codeLenInByte = 2928
  - .agpr_count:     4
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 24
    .vgpr_count:     132
    .vgpr_spill_count: 5
"""
LOG = """ptxas info    : Compiling entry function 'matmul' for 'sm_90a'
ptxas info    : Function properties for matmul
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size
"""


def test_matrix_instructions_are_counted_by_name():
    assert count_matrix_instructions(PTX) == {
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes": 1,
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": 2,
        "tcgen05.mma.cta_group::1.kind::f16": 1,
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16": 1,
    }
    assert count_matrix_instructions("fma.rn.f32 %r1, %r2, %r3, %r4;") == {}


def test_the_facts_of_both_makers():
    counted = {"mma.sync.aligned": 1}
    assert read_nvidia_facts(LOG, "mma.sync.aligned", b"", "matmul") == CompilerFacts(
        168, spill_bytes=12, spill_load_bytes=8, local_bytes=16, instructions=counted
    )
    assert read_amd_facts(AMD) == CompilerFacts(
        132, spill_bytes=20, spill_load_bytes=20, local_bytes=24, code_bytes=2928,
        instructions={"v_mfma_f32_32x32x8_f16": 2},
    )  # fmt: skip
    assert read_amd_facts(AMD).numbers()["v_mfma_f32_32x32x8_f16"] == 2
    with refuses(BuildError):
        read_amd_facts("s_endpgm")
    with refuses(BuildError):
        read_nvidia_facts(LOG, "", b"", "other")
