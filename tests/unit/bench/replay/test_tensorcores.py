"""The bench of recorded tensor-core kernels reads small tables, and says in a line what it cannot judge."""

import gzip
import sys

import pytest

pytest.importorskip("pandas", reason="the benches need pandas")
from anatune.core.hardware.files import hardware
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import Tiles
from bench.replay import tensorcores
from bench.replay.tensorcores_devices import anchored
from bench.replay.tensorcores_scores import quantising_s, score_libraries
from bench.replay.tensorcores_tables import Choices, in_half, read_choices, read_libraries

TILES = [(m, n, 32, 4, stages) for m in (64, 128) for n in (64, 128) for stages in (2, 3, 4)]


def write(folder, name, header, rows):
    text = "\n".join([header, *(",".join(map(str, row)) for row in rows)])
    (folder / f"{name}__made_up.csv.gz").write_bytes(gzip.compress(text.encode()))


def choices(device="A100", dtype="float16", weights=None):
    key = (device, 512, 512, 512, dtype, weights or dtype, "NN", "512x1", "512x1")
    rows = [(*key, *tile, 8, 0.01 + 0.001 * at, 0) for at, tile in enumerate(TILES)]
    return [*rows, (*key, "", "", "", "", "", "", 0.012, 1), (*key, 256, 256, 128, 8, 5, 8, "inf", 0)]


@pytest.fixture
def folder(tmp_path):
    header = (
        "device,m,n,k,dtype_a,dtype_b,layout,stride_a,stride_b,block_m,block_n,block_k,num_warps,num_stages,group_m"
    )
    rows = [*choices(), *choices("Q9000"), *choices(dtype="float8_e5m2"), *choices(weights="int4")]
    write(tmp_path, "autotune_mm", f"{header},time_ms,is_extern", rows)
    header = "device,library_kernel,dtype_a,dtype_b,m,n,k,time_us"
    kernel = "trtllm torch_flow"
    rows = [("B200", kernel, dtype, dtype, 64, 64, 64, 2.0) for dtype in ("bfloat16", "fp8_e4m3", "nvfp4")]
    write(tmp_path, "gemm_aiconfigurator", header, [*rows, ("Q1", kernel, "bfloat16", "bfloat16", 8, 8, 8, 2.0)])
    write(tmp_path, "gemm_aiter_winners", "file,m,n,k", [("a8w8", 8, 8, 8)])
    return tmp_path


def test_what_cannot_be_judged_is_a_line(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tensorcores", str(folder)])
    tensorcores.main()
    shown = capsys.readouterr().out
    assert "| A100 float16 | 1 |" in shown
    assert "1 of 1; of 12 that ran 0" in shown
    for line in (
        "Q9000: left out",
        "weights of int4",
        "float8_e5m2",
        "Q1: left out",
        "rows of nvfp4",
        "no column batch",
    ):
        assert line in shown
    assert "has no autotune_mixed_mm__*.csv.gz" in shown
    assert "| B200 fp8, torch_flow | smaller | 1 |" in shown


def test_halves_are_two_and_stay(folder, capsys):
    keys = [("A100", m, 64, 64) for m in range(200)]
    odd = [in_half("odd", *key) for key in keys]
    assert [not found for found in odd] == [in_half("even", *key) for key in keys]
    assert 60 < sum(odd) < 140
    assert in_half("odd", "A100", 1, 64, 64)
    halves = [list(read_choices(folder, "autotune_mm", half)) for half in ("odd", "even")]
    assert sum(map(len, halves)) == len(list(read_choices(folder, "autotune_mm")))


def test_a_device_is_what_its_library_reached():
    spec = hardware("h100_sxm")
    tiles = Tiles.of([(128, 128, 32, 4, 3, 1, 8)])
    large, wide = MatmulProblem(8192, 8192, 8192), MatmulProblem(8, 65536, 8192)
    rows = [Choices("H100", "float16", large, tiles, tiles.block_m * 1.0, 2.0 * 8192**3 / 600e12) for _ in range(6)]
    rows += [Choices("H100", "float16", wide, tiles, tiles.block_m * 1.0, 2.0 * 8192 * 65536 / 2e12) for _ in range(6)]
    found = anchored(spec, rows)
    assert found.tensor_cores.sustained_fraction == pytest.approx(600e12 / 989.4e12, abs=1e-3)
    assert found.dram.bandwidth_bytes_per_s * found.dram.reachable_fraction == pytest.approx(2e12, rel=0.01)
    assert anchored(spec, rows[:3]) == spec


def test_rows_of_8_bits_hold_the_left_operands_quantisation(folder):
    spec = hardware("b200")
    bfloat16, fp8 = (row for row in read_libraries(folder) if row.device == "B200")
    assert quantising_s(bfloat16, spec) == 0.0
    bandwidth = spec.dram.bandwidth_bytes_per_s * spec.dram.reachable_fraction
    assert quantising_s(fp8, spec) == pytest.approx(3 * spec.launch.overhead_s + 5 * 64 * 64 / bandwidth)
    scores = {score.label: score for score in score_libraries([bfloat16, fp8], {"B200": spec}, warm=6)}
    assert scores["bfloat16"].predicted_s == scores["bfloat16"].product_s
    assert scores["fp8"].predicted_s == scores["fp8"].product_s + quantising_s(fp8, spec)
