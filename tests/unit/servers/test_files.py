"""Files and their manifest."""

import json

import pytest

from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError
from anatune.servers.files import MANIFEST, ConfigRequest, write_configs
from anatune.servers.shapes import Experts, Product
from tests.wording import refuses

H200, SHAPE = hardware("h200"), Experts(128, 768, 2048, 8)
FIELDS = {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages"}


def request(server="vllm", **fields):
    return ConfigRequest(server, H200, (SHAPE,), rows=(1, 512), **{"force": True, **fields})


def test_a_file_and_its_manifest(tmp_path):
    told = []
    (written,) = write_configs(request(keep=3), tmp_path, lambda done, total: told.append((done, total)))
    entries = json.loads((tmp_path / written.path).read_text())
    assert list(entries) == ["1", "512"]
    assert set(entries["1"]) == FIELDS
    assert told == [(1, 2), (2, 2)]
    candidates = json.loads((tmp_path / written.path.replace(".json", ".candidates.json")).read_text())
    assert [len(found) for found in candidates.values()] == [3, 3]
    assert candidates["512"][0] == entries["512"]
    manifest = json.loads((tmp_path / MANIFEST).read_text())["files"][written.path]
    assert (manifest["shape"]["hidden"], manifest["shape"]["top_k"]) == (2048, 8)
    write_configs(request(), tmp_path)  # its own files are replaced


def test_the_default_of_a_layer_without_a_tuned_file_is_no_faster(tmp_path):
    (written,) = write_configs(
        ConfigRequest("vllm", H200, (Experts(96, 768, 2048, 8),), rows=(1, 512), force=True), tmp_path
    )
    for choice in written.choices:
        assert choice.time_s <= 1.001 * choice.default_s


def test_a_file_of_others_stays(tmp_path):
    place = tmp_path / "E=128,N=768,device_name=NVIDIA_H200.json"
    place.write_text("{}")
    with refuses(SpaceError):
        write_configs(request(), tmp_path)
    assert place.read_text() == "{}"
    (tmp_path / "out").mkdir()
    listed = tmp_path / "out" / "E=128,N=768,device_name=NVIDIA_H200.candidates.json"
    listed.write_text("{}")
    write_configs(request(), tmp_path / "out")
    with refuses(SpaceError):
        write_configs(request(keep=3), tmp_path / "out")
    assert listed.read_text() == "{}"
    listed.unlink()
    for keep in (3, 0, 2):  # a list of its own is replaced
        write_configs(request(keep=keep), tmp_path / "out")


@pytest.mark.parametrize("hw", ["a100_sxm", "rtx3090", "mi250x"])
def test_floats_of_8_bits_need_an_instruction(tmp_path, hw):
    for shape in (Experts(128, 768, 2048, 8, "fp8_w8a8"), Product(1536, 7168)):
        with refuses(SpaceError):
            write_configs(ConfigRequest("vllm", hardware(hw), (shape,), device="X"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sglang_has_folders_and_files_of_the_down_product(tmp_path):
    up, down = write_configs(request("sglang", triton="3.6.0", down=True), tmp_path)
    assert down.path == "configs/triton_3_6_0/E=128,N=768,device_name=NVIDIA_H200_down.json"
    sizes = [
        [entry["BLOCK_SIZE_M"] for entry in json.loads((tmp_path / file.path).read_text()).values()]
        for file in (up, down)
    ]
    assert sizes[0] == sizes[1]


def test_amds_files_have_more_fields(tmp_path):
    (written,) = write_configs(ConfigRequest("vllm", hardware("mi300x"), (SHAPE,), rows=(16,), force=True), tmp_path)
    assert set(json.loads((tmp_path / written.path).read_text())["16"]) > FIELDS
