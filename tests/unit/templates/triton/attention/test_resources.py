import pytest

from anatune.core.hardware.files import hardware
from anatune.core.hardware.spec import GpuSpec
from anatune.templates.triton.attention.problem import AttentionProblem, AttentionTiles
from anatune.templates.triton.attention.resources import attention_resources
from anatune.templates.triton.instructions import DotUnit

# head_dim, tile (block_m, block_n, warps, stages, split, descriptors), bytes that Triton 3.9 asks for on sm_90
COMPILED = [
    (64, (64, 32, 8, 2, 1, 0), 24576),
    (128, (32, 128, 8, 3, 1, 0), 147456),
    (128, (32, 16, 4, 4, 1, 0), 33792),
    (128, (16, 32, 8, 3, 1, 0), 37888),
    (128, (64, 64, 4, 4, 1, 1), 148480),
    (64, (64, 128, 8, 2, 1, 1), 74752),
    (64, (128, 256, 4, 1, 1, 0), 49152),
]


@pytest.mark.parametrize(("head_dim", "tile", "shared"), COMPILED)
def test_shared_bytes_are_the_compilers(head_dim: int, tile: tuple[int, ...], shared: int) -> None:
    spec = hardware("h100_sxm")
    assert isinstance(spec, GpuSpec)
    problem = AttentionProblem(4, 16, 4, 1024, 2048, head_dim, causal=True)
    need = attention_resources(problem, AttentionTiles.of([tile]), spec)
    assert need.shared_bytes[0] == shared


def test_small_tiles_have_no_wide_unit() -> None:
    spec = hardware("h100_sxm")
    assert isinstance(spec, GpuSpec)
    problem = AttentionProblem(1, 8, 1, 1, 2048, 128)
    tiles = AttentionTiles.of([[16, 64, 4, 2, 1], [64, 64, 4, 2, 1], [64, 64, 2, 2, 1]])
    assert attention_resources(problem, tiles, spec).unit.tolist() == [DotUnit.MMA, DotUnit.WGMMA, DotUnit.MMA]
