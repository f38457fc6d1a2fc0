"""What servers take without a file (compared with their own functions on 2026-11-23), and whom they prefer."""

import pytest

from anatune.core.hardware.files import hardware
from anatune.servers.defaults import default_tile, rivals
from anatune.servers.shapes import Experts, Product

PLAIN, SCALED = Experts(64, 1024, 2048, 8), Experts(256, 256, 7168, 8, "fp8_w8a8", (128, 128))

PACKED = Experts(384, 256, 7168, 8, "int4_w4a16", group=32)


@pytest.mark.parametrize(
    ("server", "shape", "tokens", "hw", "tile"),
    [
        ("vllm", PLAIN, 16, "h200", (16, 64, 128, 4, 4, 1, 1)),
        ("vllm", PLAIN, 16384, "h200", (128, 128, 64, 8, 3, 1, 16)),
        ("vllm", PLAIN, 16, "mi300x", (16, 64, 128, 4, 2, 1, 1)),
        ("vllm", SCALED, 4, "h200", (16, 64, 128, 4, 4, 1, 1)),
        ("vllm", SCALED, 4096, "h200", (64, 128, 128, 4, 3, 1, 32)),
        ("sglang", PLAIN, 64, "h200", (16, 32, 64, 4, 3, 1, 1)),
        ("sglang", PLAIN, 65, "h200", (64, 64, 32, 4, 3, 1, 8)),
        ("sglang", Experts(64, 1024, 2048, 8, "fp8_w8a8"), 65, "rtx4090", (64, 128, 256, 4, 2, 1, 64)),
        ("vllm", PACKED, 1, "h200", (16, 32, 64, 4, 3, 1, 1)),
        ("vllm", PACKED, 288, "h200", (16, 64, 32, 4, 3, 1, 1)),
        ("vllm", PACKED, 289, "h200", (64, 64, 32, 4, 3, 1, 1)),
        ("vllm", PACKED, 32, "mi300x", (32, 64, 32, 4, 2, 1, 1)),
        ("sglang", PACKED, 512, "h200", (64, 64, 32, 4, 3, 1, 8)),
        ("vllm", Product(576, 7168), 1, "h200", (64, 128, 128, 4, 2, 1, 32)),
    ],
)
def test_default_tiles(server, shape, tokens, hw, tile):
    assert default_tile(server, shape, tokens, hardware(hw)) == tile


def test_rivals_are_named():
    assert "DeepGEMM" in rivals("vllm", Product(576, 7168), hardware("h200"))[0]
    assert "FlashInfer" in rivals("vllm", SCALED, hardware("b200"))[0]
    assert "AITER" in rivals("sglang", PLAIN, hardware("mi300x"))[0]
    assert "--moe-backend triton" in rivals("vllm", PACKED, hardware("a100_sxm"))[0]
    assert "moe_wna16" in rivals("sglang", PACKED, hardware("h200"))[0]
    assert rivals("vllm", PLAIN, hardware("a100_sxm")) == []
