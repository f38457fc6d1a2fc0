"""Which recorded products the replay plans, and what it prints of their times."""

import gzip
from pathlib import Path

import pytest

from bench.replay.tensorcores_scaled import ScaledTime, print_times, read_times, workload_of


@pytest.mark.parametrize(
    ("library", "weights", "formats"),
    [
        ("trtllm trt_flow_/weight_only_quant_matmul_L257", "int4", "float16xint4:float16"),
        ("trtllm trt_flow_/smooth_quant_gemm_L96", "int8", "int8:bfloat16"),
        ("sglang sglang_flashinfer_cutedsl_nvfp4", "nvfp4", "nvfp4:bfloat16"),
    ],
)
def test_libraries_are_workloads(library: str, weights: str, formats: str) -> None:
    workload = workload_of(library, weights, 16, 256, 512)
    assert workload is not None
    assert workload.formats == formats
    assert workload_of(library, weights, 16, 256, 500) is None
    assert workload_of("vllm torch.nn.functional.linear", "bfloat16", 16, 256, 512) is None


def test_times_are_read_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = "device,library_kernel,dtype_a,dtype_b,dtype_out,m,n,k,time_us"
    rows = [f"A100-SXM4-80GB,trtllm smooth_quant_gemm,int8,int8,,{m},1024,512,20.0" for m in (16, 128)]
    with gzip.open(tmp_path / "gemm_aiconfigurator__x.csv.gz", "wt") as file:
        file.write("\n".join([head, *rows]))
    found = list(read_times(tmp_path, "all", 10))
    assert [time.group[2] for time in found] == ["few rows", "others"]
    assert all(0 < time.predicted_s < time.measured_s == 2e-5 for time in found)
    print_times([*found, ScaledTime(found[0].group, 4e-5, 2e-5)])
    assert "| few rows | 2 |" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError):
        list(read_times(tmp_path / "none", "all", 10))
