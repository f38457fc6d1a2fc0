"""Tuned files that servers ship."""

import importlib.util
import json

import pytest

from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError
from anatune.servers.files import MANIFEST, ConfigRequest, write_configs
from anatune.servers.measuring import MeasureOptions
from anatune.servers.shapes import Experts, Product
from anatune.servers.written import find_shipped
from tests.unit.measure.fake_cuda import BACKEND
from tests.unit.servers.pretended import Pretended
from tests.wording import refuses

MIXTRAL, H100 = Experts(8, 7168, 4096, 2), hardware("h100_sxm")
NAME = "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json"
QWEN = "E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3.json"
PRODUCT = "N=1536,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
TUNED = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}


@pytest.fixture(autouse=True)
def _no_server(monkeypatch):
    monkeypatch.setattr("anatune.servers.written.util.find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("server", "name", "triton", "who"),
    [
        ("vllm", NAME, None, "vLLM 0.33.0"),
        ("vllm", PRODUCT, None, "vLLM 0.33.0"),
        ("sglang", QWEN, "3.2.0", "SGLang 0.5.23 (tuned with Triton 3.2.0)"),
        ("sglang", QWEN, "3.6.0", "SGLang 0.5.23 (tuned with Triton 3.7.1)"),
    ],
)
def test_a_listed_file_is_named_with_who_ships_it(server, name, triton, who):
    shipped = find_shipped(server, name, triton)
    assert (shipped.server, shipped.tiles) == (who, None)


def test_what_nobody_ships():
    assert find_shipped("vllm", "E=8,N=7168,device_name=NVIDIA_GeForce_RTX_4090.json") is None
    assert find_shipped("vllm", "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3,dtype=int8_w8a16.json") is None
    assert find_shipped("vllm", "E=8,N=7169,device_name=NVIDIA_H100_80GB_HBM3.json") is None


def test_the_server_that_is_installed_here_is_asked_first(tmp_path, monkeypatch):
    package = tmp_path / "vllm"
    (package / "configs").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    spec = importlib.util.spec_from_file_location("vllm", package / "__init__.py")
    monkeypatch.setattr("anatune.servers.written.util.find_spec", lambda name: spec)
    assert find_shipped("vllm", NAME) is None  # the list says that another version has it
    (package / "configs" / NAME).write_text(json.dumps({"1": TUNED, "64": {**TUNED, "BLOCK_SIZE_M": 64}}))
    shipped = find_shipped("vllm", NAME)
    assert shipped.server == "vLLM as installed here"
    assert [shipped.nearest(rows)[0] for rows in (1, 30, 40, 4096)] == [32, 32, 64, 64]


def test_predicted_tiles_do_not_take_the_place_of_tuned_ones(tmp_path):
    request = ConfigRequest("vllm", H100, (MIXTRAL,), rows=(1, 64))
    (file,) = write_configs(request, tmp_path / "out")
    assert file.not_written.startswith("vLLM 0.33.0 ships a file for this layer that was tuned on this device")
    assert [(one.default, one.gain) for one in file.choices] == [(None, None)] * 2
    assert not (tmp_path / "out").exists()
    tuned = tmp_path / "tuned.json"
    tuned.write_text(json.dumps({"1": TUNED}))
    (file,) = write_configs(
        ConfigRequest("vllm", H100, (MIXTRAL,), rows=(1,), against=tuned, force=True), tmp_path / "out"
    )
    assert (file.shipped, file.not_written, file.choices[0].default[:3]) == ("the server", "", (32, 64, 64))
    assert (tmp_path / "out" / MANIFEST).exists()


def test_a_file_that_gains_nothing_is_not_written(tmp_path):
    request = ConfigRequest("vllm", hardware("rtx4090"), (MIXTRAL,), rows=(1, 64))
    (file,) = write_configs(request, tmp_path / "out")
    assert max(one.gain for one in file.choices) < 1.05
    assert file.not_written.startswith("no entry has a predicted gain of 5 %")
    assert not (tmp_path / "out").exists()


def test_measured_tiles_take_it_where_they_gain(tmp_path, monkeypatch):
    monkeypatch.setattr("anatune.tuning.places.local.LocalPlace.provenance", lambda *_: {})
    request = ConfigRequest("vllm", hardware("h200"), (Product(1536, 7168),), rows=(8,), keep=2)
    how = MeasureOptions(None, 0, BACKEND, request.spec, Pretended)
    with refuses(SpaceError):
        write_configs(request, tmp_path / "out", measuring=how)
    tuned = tmp_path / PRODUCT
    tuned.write_text(json.dumps({"8": {**TUNED, "BLOCK_SIZE_K": 128}}))
    (file,) = write_configs(ConfigRequest(**{**vars(request), "against": tuned}), tmp_path / "out", measuring=how)
    assert file.choices[0].default_measured_s is not None
    assert bool(file.not_written) is (file.choices[0].gain < 1.05)
