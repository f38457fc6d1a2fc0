"""The judgement of others' files."""

import json

import pytest

from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError
from anatune.servers.files import ConfigRequest, write_configs
from anatune.servers.judging import check_file
from anatune.servers.shapes import Experts, Product
from tests.wording import refuses

H200, SHAPE = hardware("h200"), Experts(128, 768, 2048, 8)
BLOCKS = (128, 128)


def test_a_file_is_judged(tmp_path):
    (written,) = write_configs(ConfigRequest("vllm", H200, (SHAPE,), rows=(1, 512), force=True), tmp_path)
    place = tmp_path / written.path
    assert [entry.time_s / entry.best_s for entry in check_file(place, SHAPE, H200)] == pytest.approx(
        [1.0, 1.0], abs=2e-3
    )
    poor = {"512": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}}
    place.write_text(json.dumps({"triton_version": "3.5.0", **poor}))
    (entry,) = check_file(place, SHAPE, H200)
    assert entry.tile == (16, 32, 64, 4, 3, 1, 1)
    assert entry.time_s > 1.1 * entry.best_s


@pytest.mark.parametrize(
    "text", ["[]", "{}", pytest.param('{"%s": {}}' % ("9" * 5000), id="long"), '{"1": 2}', '{"1": {"BLOCK_SIZE_M": 0}}']
)
def test_what_is_no_file_of_configurations(tmp_path, text):
    place = tmp_path / "E=128,N=768,device_name=NVIDIA_H200.json"
    place.write_text(text)
    with refuses(SpaceError):
        check_file(place, SHAPE, H200)


def judged(place, shape, **fields):
    tile = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_stages": 2, **fields}
    place.write_text(json.dumps({"16": tile}))
    (entry,) = check_file(place, shape, H200)
    return entry


def test_what_does_not_run_is_said(tmp_path):
    product, experts = Product(1536, 7168), Experts(16, 256, 7168, 2, "fp8_w8a8", BLOCKS)
    place = tmp_path / "file.json"
    fine = judged(place, product)
    assert fine.time_s >= fine.best_s
    for field, value in (("BLOCK_SIZE_K", 256), ("num_warps", 3), ("BLOCK_SIZE_N", 96)):
        assert judged(place, product, **{field: value}).time_s is None
    assert judged(place, experts, num_warps=6).time_s is None
    deep = judged(place, experts, BLOCK_SIZE_K=256)  # servers cut it
    assert deep.tile[2] == 256
    assert deep.time_s == judged(place, experts).time_s


def test_no_device_without_floats_of_8_bits(tmp_path):
    place = tmp_path / "file.json"
    judged(place, Product(1536, 7168))
    with refuses(SpaceError):
        check_file(place, Product(1536, 7168), hardware("a100_sxm"))
