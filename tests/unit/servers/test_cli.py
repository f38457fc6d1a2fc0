"""The words of ``anatune configs``, and what it says."""

import json

import pytest

from anatune.cli.main import main
from anatune.core.hardware.files import hardware
from anatune.servers.measuring import MeasureOptions
from tests.unit.measure.fake_cuda import BACKEND
from tests.unit.servers.pretended import Pretended

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


def test_a_tuned_file_of_the_server_is_not_replaced_by_predictions(tmp_path, capsys):
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    words = ["configs", "vllm", "--hw", "h100_sxm", "--model", str(tmp_path), "--tp", "2", "--rows", "64"]
    assert main([*words, "-o", str(tmp_path / "out")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Not written: vLLM 0.33.0 ships a file for this layer that was tuned on this device" in said
    assert "gain" not in said
    assert not (tmp_path / "out").exists()
    assert main([*words, "-o", str(tmp_path / "out"), "--force"]) == 0
    assert "Not written" not in capsys.readouterr().out
    assert (tmp_path / "out" / "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json").exists()


def written(capsys, *words):
    assert main(["configs", *words, "--rows", "1,64", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["written"]


def test_experts_are_spread_over_ranks(tmp_path, capsys):
    (file,) = written(capsys, "vllm", "--hw", "h200", *MOE, "--tp", "8", "--ep", "8", "-o", str(tmp_path))
    assert file["path"] == "E=8,N=1024,device_name=NVIDIA_H200.json"
    words = ["--hidden", "2048", "--top-k", "8", "--ep", "8", "--json"]
    assert main(["configs", "check", str(tmp_path / file["path"]), "--hw", "h200", *words]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert [one["time_s"] for one in judged] == pytest.approx([one["time_s"] for one in file["choices"]])
    parts = ("--tp", "8", "--ep", "4", "--triton-version", "3.6.0", "-o", str(tmp_path / "sglang"))
    (file,) = written(capsys, "sglang", "--hw", "h200", *MOE, *parts)
    assert file["path"].endswith("E=16,N=512,device_name=NVIDIA_H200.json")


def test_the_version_of_triton_in_the_server_matters_to_scales_of_blocks(tmp_path, capsys):
    words = ["--hw", "h100", "--n", "576", "--k", "7168", "--rows", "16"]
    versions = {"late": [], "old": ["--triton-version", "3.1.0"], "next": ["--triton-version", "3.10.0"]}
    files = {
        name: written(capsys, "vllm", *words, "--force", *more, "-o", str(tmp_path / name))[0]
        for name, more in versions.items()
    }
    rows = {name: file["choices"][0]["tile"][0] for name, file in files.items()}
    assert rows == {"late": 16, "old": 64, "next": 16}
    checked = ["configs", "check", str(tmp_path / "old" / files["old"]["path"]), "--hw", "h100", "--json"]
    assert main([*checked, "--triton-version", "3.1.0"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["best"][0] == 64
    assert main([*checked, "--triton-version", "new"]) == 1
    assert "expected a value of triton.__version__" in capsys.readouterr().err


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_weights_of_4_bits(tmp_path, capsys, server):
    words = ["--hw", "h200", *MOE, "--dtype", "int4_w4a16", "--group-size", "64", "-o", str(tmp_path)]
    version = ["--triton-version", "3.6.0"] if server == "sglang" else []
    (file,) = written(capsys, server, *words, *version)
    packed = 512 if server == "sglang" else 1024
    assert file["path"].endswith(f"E=64,N={packed},device_name=NVIDIA_H200,dtype=int4_w4a16.json")
    more = ["--hidden", "2048", "--top-k", "8", "--group-size", "64", "--json"]
    assert main(["configs", "check", str(tmp_path / file["path"]), "--hw", "h200", *more]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert [one["time_s"] for one in judged] == pytest.approx([one["time_s"] for one in file["choices"]])


def test_a_build_of_triton_names_the_folder(tmp_path, capsys):
    (file,) = written(
        capsys,
        "sglang",
        "--hw",
        "h200",
        *MOE,
        "--rows",
        "4",
        "--triton-version",
        "3.4.0+git0b5f1f2e",
        "-o",
        str(tmp_path),
    )
    assert file["path"].startswith("configs/triton_3_4_0+git0b5f1f2e/")
    assert (
        main(["configs", "check", str(tmp_path / file["path"]), "--hw", "h200", "--hidden", "64", "--top-k", "2"]) == 0
    )
    capsys.readouterr()


def test_parts_of_a_block_are_said(tmp_path, capsys):
    assert (
        main(["configs", "vllm", "--hw", "h200", "--n", "576", "--k", "7168", "--rows", "4", "-o", str(tmp_path)]) == 0
    )
    assert "n = 576 is not a multiple of the block" in " ".join(capsys.readouterr().out.split())


def test_a_page(tmp_path, capsys):
    pytest.importorskip("plotly", reason="pip install '.[report]'")
    words = ["configs", "vllm", "--hw", "h200", *MOE, "--rows", "1,64", "-o", str(tmp_path / "out")]
    assert main([*words, "--html", str(tmp_path / "page.html")]) == 0
    assert "page: " in capsys.readouterr().err
    assert "64 experts of 1024" in (tmp_path / "page.html").read_text()


def test_the_few_best_are_measured(tmp_path, capsys, monkeypatch):
    real = MeasureOptions
    host = hardware("h200")
    monkeypatch.setattr(
        "anatune.servers.measuring.MeasureOptions",
        lambda records, device, backend: real(records, device, backend, host, Pretended),
    )
    monkeypatch.setattr("anatune.tuning.places.local.LocalPlace.provenance", lambda *_: {})
    words = [
        "configs",
        "vllm",
        "--hw",
        "h200",
        *MOE,
        "--rows",
        "4",
        "-o",
        str(tmp_path),
        "--backend",
        BACKEND,
        "--force",
    ]
    assert main([*words, "--measure", "--records", str(tmp_path / "mine.sqlite")]) == 0
    said = capsys.readouterr().out
    assert "Measured gain" in said
    assert (tmp_path / "mine.sqlite").exists()
    (listed,) = json.loads(next(tmp_path.glob("*.candidates.json")).read_text()).values()
    assert len(listed) == 8


PRODUCT, MANY = ("--n", "1536", "--k", "7168"), "9" * 5000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            (["vllm", "--hw", "h200", *PRODUCT, name, "4"], f"{name} is for experts, but the layer is a product")
            for name in ("--experts", "--intermediate", "--hidden", "--top-k", "--tp", "--group-size", "--power-law")
        ),
        *(
            (["vllm", "--hw", "h200", "--model", "config.json", name, "4"], f"{name} is part of --model")
            for name in ("--experts", "--intermediate", "--hidden", "--top-k")
        ),
        (["vllm", "--hw", "h200", *PRODUCT, "--model", "config.json"], "--model is for experts"),
        (["vllm", "--hw", "h200", *MOE, "--measure", "--keep", "0"], "the tiles of --keep, but --keep is 0"),
        (["vllm", "--hw", "h200", *MOE, "--rows", MANY], "--rows is '999"),
        (["vllm", "--hw", "h200", *MOE, "--block-shape", f"128,{MANY}"], "--block-shape is '999"),
        (["vllm", "--hw", "a100_sxm", *MOE, "--dtype", "fp8_w8a8"], "no matrix instruction for 8-bit floats"),
        (["vllm", "--hw", "h200"], "the layer is missing"),
        (["vllm", "--hw", "h200", "--n", "1536"], "--n and --k are both sizes of the weights"),
        (["vllm", "--hw", "h200", *MOE, "--tp", "3"], "cannot be divided evenly"),
        (["vllm", "--hw", "h200", *PRODUCT[:3], "7160"], "k is 7160, expected a multiple of 128, because servers"),
        (["vllm", "--hw", "h200", "--n", "96", "--k", "7168"], "n is 96, expected a multiple of 128"),
        *(
            (
                [
                    server,
                    "--hw",
                    "h200",
                    "--experts",
                    "128",
                    "--intermediate",
                    "768",
                    "--hidden",
                    "2048",
                    "--top-k",
                    "8",
                    *more,
                    "--dtype",
                    "fp8_w8a8",
                    "--block-shape",
                    "128,128",
                    "--tp",
                    "8",
                ],
                "intermediate size on a rank is 96, expected a multiple of 128",
            )
            for server, more in (("vllm", ()), ("sglang", ("--triton-version", "3.4.0+git0b5f1f2e")))
        ),
        (["vllm", "--hw", "h200", *MOE, "--ep", "3"], "cannot be divided evenly by --ep 3"),
        (["vllm", "--hw", "h200", *MOE, "--tp", "8", "--ep", "3"], "--tp 8 is not a multiple of --ep 3"),
        (["vllm", "--hw", "h200", *MOE, "--tp", "8", "--ep", "4"], "vLLM distributes experts over all ranks"),
        (["vllm", "--hw", "h200", "--n", "1536", "--k", "7168", "--ep", "4"], "--ep is for experts"),
        (["vllm", "--hw", "h200", *MOE, "--dtype", "int4_w4a16"], "(--group-size)"),
        (["vllm", "--hw", "h200", *MOE, "--group-size", "64"], "needs the dtype int4_w4a16"),
        (["vllm", "--hw", "h200", *MOE, "--records", "r.sqlite"], "--records needs --measure"),
        (["vllm", "--hw", "h200", *MOE, "--device", "0"], "--device needs --measure"),
        (["vllm", "--hw", "h200", *MOE, "--measure"], "--measure for h200 needs that GPU"),
        (["vllm", "--hw", "mi300x", *MOE, "--measure"], "is no NVIDIA GPU"),
        (["vllm", "--hw", "h200", *MOE, "--block-shape", "128"], "two sizes"),
        (["vllm", "--hw", "h200", *MOE, "--rows", "0"], "--rows"),
        (["vllm", "--hw", "ryzen_7950x", *MOE], "is not a GPU"),
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


def test_a_name_says_the_layer_and_a_model_the_rest(tmp_path, capsys):
    config = tmp_path / "config.json"
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    layer = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
    config.write_text(json.dumps({**layer, "quantization_config": quantised}))
    (file,) = written(capsys, "vllm", "--hw", "h200", *MOE, "-o", str(tmp_path))
    words = ["configs", "check", str(tmp_path / file["path"]), "--hw", "h200"]
    said = []
    for more in (["--model", str(config)], ["--hidden", "2048", "--top-k", "8"]):
        assert main([*words, *more, "--json"]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[0] == said[1]
    for name, value in (("--experts", "64"), ("--dtype", "fp8_w8a8"), ("--block-shape", "128,128"), ("--n", "64")):
        assert main([*words, "--model", str(config), name, value]) == 2
        assert f"{name} is in the file's name" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("part", ["E={},N=64", "E=64,N={}", "E=70000,N=64", "N={},K=64", "N=64,K=100000000"])
def test_numbers_of_a_name_have_an_end(capsys, part):
    name = part.format("9" * 200) + ",device_name=X.json"
    assert main(["configs", "check", name, "--hw", "h200", "--hidden", "64", "--top-k", "2"]) in (1, 2)
    error = " ".join(capsys.readouterr().err.split())
    assert "expected an integer" in error
    assert "Traceback" not in error
