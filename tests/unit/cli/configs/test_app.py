"""The words of ``anatune configs``, and what it says."""

import json

import pytest

from anatune.cli.main import main

MOE = ("--experts", "64", "--intermediate", "1024", "--hidden", "2048", "--top-k", "8")


def test_files_for_vllm(tmp_path, capsys):
    assert main(["configs", "vllm", "--hw", "h200", *MOE, "--rows", "1,64", "-o", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "VLLM_TUNED_CONFIG_FOLDER" in said
    assert "gain" in said
    file = tmp_path / "E=64,N=1024,device_name=NVIDIA_H200.json"
    assert main(["configs", "check", str(file), "--hw", "h200", "--hidden", "2048", "--top-k", "8", "--json"]) == 0
    assert [entry["rows"] for entry in json.loads(capsys.readouterr().out)] == [1, 64]


def test_files_of_a_model_for_sglang(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8})
    )
    words = ["configs", "sglang", "--hw", "h200", "--model", str(config), "--tp", "2", "--rows", "8", "--json"]
    assert main([*words, "--triton-version", "3.6.0", "-o", str(tmp_path / "out")]) == 0
    (written,) = json.loads(capsys.readouterr().out)["written"]
    assert written["path"] == "configs/triton_3_6_0/E=128,N=384,device_name=NVIDIA_H200.json"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vllm", "--hw", "h200"], "which layer?"),
        (["vllm", "--hw", "h200", "--n", "1536"], "--n and --k go together"),
        (["vllm", "--hw", "h200", *MOE, "--tp", "3"], "does not divide"),
        (["vllm", "--hw", "h200", *MOE, "--block-shape", "128"], "two sizes"),
        (["vllm", "--hw", "h200", *MOE, "--rows", "0"], "--rows"),
        (["vllm", "--hw", "ryzen_7950x", *MOE], "is no GPU"),
        (["vllm", "--hw", "gtx1080ti", *MOE], "--device-name"),
        (["sglang", "--hw", "h200", *MOE], "--triton-version"),
        (["sglang", "--hw", "h200", "--n", "64", "--k", "64", "--down"], "--down"),
    ],
)
def test_bad_words_are_one_line(tmp_path, capsys, words, said):
    assert main(["configs", *words, "-o", str(tmp_path / "out")]) in (1, 2)
    error = capsys.readouterr().err
    assert said in " ".join(error.split())
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_a_name_that_does_not_tell_the_hidden_size(tmp_path, capsys):
    file = tmp_path / "E=64,N=1024,device_name=NVIDIA_H200.json"
    file.write_text("{}")
    assert main(["configs", "check", str(file), "--hw", "h200"]) == 2
    assert "--hidden and --top-k" in " ".join(capsys.readouterr().err.split())
