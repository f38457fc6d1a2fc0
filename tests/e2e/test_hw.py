"""``anatune hw`` from the shell."""

import importlib.util
import json

import pytest

from anatune.core.hardware.files import load_spec_file


def test_list(anatune):
    table, listed = anatune("hw", "list"), anatune("hw", "list", "--json")
    assert (table.returncode, listed.returncode) == (0, 0)
    rows = json.loads(listed.stdout)
    assert {"rtx3090", "xeon_gold_6230r"} <= {row["name"] for row in rows}
    assert len(table.stdout.splitlines()) == len(rows) + 1
    assert {row["kind"] for row in rows} == {"gpu", "cpu"}


@pytest.mark.parametrize("name", ["rtx3090", "RTX 3090", "xeon_gold_6230r"])
def test_show(anatune, name):
    text, tree = anatune("hw", "show", name), anatune("hw", "show", name, "--json")
    assert "# unverified" in text.stdout
    spec = json.loads(tree.stdout)
    assert spec["compute"]["fp32_peak_flop_per_s"] > 1e12
    assert spec["compute"]["unverified"]


def test_show_host_without_a_saved_spec(anatune, tmp_path):
    done = anatune("hw", "show", "host", XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert 'name = "host"' in done.stdout


def test_check_good(anatune, tmp_path):
    path = tmp_path / "nvidia_rtx3090.toml"
    path.write_text(anatune("hw", "show", "rtx3090").stdout)
    done = anatune("hw", "check", path)
    assert done.returncode == 0, done.stderr
    assert f"{path}: usable" in done.stdout
    findings = json.loads(anatune("hw", "check", path, "--json").stdout)
    assert {finding["level"] for finding in findings} <= {"warning", "note"}


def test_check_bad(anatune, tmp_path):
    path = tmp_path / "nvidia_rtx3090.toml"
    path.write_text(anatune("hw", "show", "rtx3090").stdout.replace("936e9", "936"))
    done = anatune("hw", "check", path)
    assert done.returncode == 1
    assert "dram.bandwidth_bytes_per_s" in done.stdout
    assert "GB/s" in done.stdout
    assert done.stderr.count("\n") == 1
    as_json = anatune("hw", "check", path, "--json")
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout)[0]["level"] == "error"


def test_detect_writes_a_usable_spec(anatune, tmp_path):
    done = anatune("hw", "detect", XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    path = tmp_path / "anatune" / "hwspecs" / "host.toml"
    assert str(path) in done.stdout
    assert "\nCPU: " in done.stdout
    assert "\nGPU: " in done.stdout
    hidden = load_spec_file(path).hidden_features or ()
    assert ("does not offer: " + ", ".join(hidden) in done.stdout) == bool(hidden)
    compute = load_spec_file(path).compute
    is_measured = "anatune hw detect" in compute.source
    assert is_measured == (importlib.util.find_spec("tvm") is not None) == ("not measured" not in done.stderr)
    assert is_measured == ("clock_hz" not in compute.unverified)
    assert anatune("hw", "check", path).returncode == 0
    tree = json.loads(anatune("hw", "detect", "--json", XDG_CONFIG_HOME=str(tmp_path)).stdout)
    assert tree["path"] == str(path)
    assert tree["cpu"]["name"] == "host"
    assert tree["gpus"] or tree["gpu_note"]


def test_detect_keeps_calibrated_numbers(anatune, tmp_path):
    anatune("hw", "detect", XDG_CONFIG_HOME=str(tmp_path))
    (path,) = tmp_path.rglob("host.toml")
    calibrated = path.read_text().replace('source = "', 'source = "anatune hw calibrate, 2026-11-21; the rest ', 1)
    path.write_text(calibrated)
    done = anatune("hw", "detect", XDG_CONFIG_HOME=str(tmp_path))
    assert (done.returncode, path.read_text()) == (0, calibrated)
    assert "holds calibrated numbers and was not replaced" in done.stderr
    assert anatune("hw", "detect", "--force", XDG_CONFIG_HOME=str(tmp_path)).returncode == 0
    assert "calibrate, 2026" not in path.read_text()


def test_detect_print_writes_nothing(anatune, tmp_path):
    done = anatune("hw", "detect", "--print", XDG_CONFIG_HOME=str(tmp_path))
    assert 'name = "host"' in done.stdout
    assert done.stderr.startswith("GPU: ")
    assert not list(tmp_path.rglob("*.toml"))
