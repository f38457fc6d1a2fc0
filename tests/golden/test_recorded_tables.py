"""Recorded tables become points; what cannot be used is explained, whatever the folder holds."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import anatune
from bench.replay import metrics, recorded_gpu

RECORDED = Path(__file__).parent / "recorded"
CONV = "conv_n4_c8_h14x14_k16_r3x3_s1x1_o14x14"


def conv_row(**changes):
    tiles = {"t_f": "2x1x4x2", "t_y": "7x1x2x1", "t_x": "2x1x7x1", "t_rc": "4x2", "t_ry": "3x1", "t_rx": "1x3"}
    row = {"gpu": "rtx3080", "workload_id": CONV, **tiles, "unroll": 512, "time_s": 1e-5, "err": 0, "kept": "rand"}
    return {**row, **changes}


def load(folder, *rows, name="autotvm_conv2d_new__mit.csv"):
    pd.DataFrame(rows).to_csv(folder / name, index=False)
    notes = []
    return list(recorded_gpu.load_groups(folder, notes)), notes


def test_an_autotvm_row_becomes_a_point(tmp_path):
    (group,), notes = load(tmp_path, conv_row())
    assert (group.kind, group.device, group.workload_id) == ("autotvm", "rtx3080", CONV)
    assert notes == []
    assert group.workload == anatune.conv2d(4, 8, 14, 14, 16, 3, 3, padding=1)
    assert group.points.tolist() == [[
        4, 1, 1, 1, 1, 2, 1, 4, 1, 2, 7, 1, 2, 1, 1, 2, 1, 7, 1, 1, 4, 2, 1, 3, 1, 1, 1, 3, 1, 512, 1, 1,
    ]]  # fmt: skip


def test_unknown_devices_and_workloads_are_skipped_with_a_reason(tmp_path):
    groups, notes = load(
        tmp_path,
        conv_row(),
        conv_row(gpu="no_such_gpu"),
        conv_row(gpu="ryzen3700x"),
        conv_row(workload_id="dwconv_n1_c2"),
        conv_row(workload_id="mm_m4_n4_k4_nn"),
        conv_row(gpu=None),
    )
    assert [len(group.points) for group in groups] == [1]
    assert len(notes) == 4
    assert any("no_such_gpu" in note and "1 rows skipped" in note for note in notes)
    assert any("not a GPU" in note for note in notes)
    assert any("dwconv_n1_c2" in note for note in notes)
    assert any("not those of the workload" in note for note in notes)


@pytest.mark.parametrize("tile", ["2x1x4x3", "2x4x2", "16", "ax1x4x2", None, "-2x1x-4x2", "0x1x4x2"])
def test_rows_that_do_not_divide_are_counted(tmp_path, tile):
    (group,), notes = load(tmp_path, conv_row(), conv_row(t_f=tile))
    assert len(group.points) == len(group.time_s) == len(group.unbiased) == 1
    assert notes == [f"autotvm_conv2d_new__mit: rtx3080 {CONV}: 1 of 2 rows do not divide, skipped"]


def test_failed_rows_have_no_time(tmp_path):
    (group,), _ = load(
        tmp_path, conv_row(), conv_row(time_s=None), conv_row(err=4), conv_row(time_s=0.0), conv_row(time_s="slow")
    )
    assert np.isfinite(group.time_s).tolist() == [True, False, False, False, False]


def test_unbiased_rows(tmp_path):
    (group,), _ = load(tmp_path, conv_row(), conv_row(kept="best"))
    assert group.unbiased.tolist() == [True, False]
    (group,), _ = load(tmp_path, conv_row(tuners="xgb,random"), conv_row(tuners="xgb"), conv_row(tuners=None))
    assert group.unbiased.tolist() == [True, False, False]
    ansor = {"t_n": "4x1x1x1x1", "idx": 63}
    (group,), _ = load(tmp_path, conv_row(**ansor), conv_row(**{**ansor, "idx": 64}))
    assert (group.kind, group.unbiased.tolist()) == ("ansor", [True, False])


def test_odd_files_are_left_alone(tmp_path):
    (tmp_path / "broken.csv.gz").write_bytes(b"not gzip")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "gpus.csv").write_text("gpu,arch\nk80,sm_37\n")
    (tmp_path / "README.md").write_text("text")
    groups, notes = load(tmp_path, conv_row())
    assert len(groups) == 1
    assert [note.split(":")[0] for note in notes] == ["broken", "empty"]


def test_clblast_rows(tmp_path):
    row = {
        "gpu": "mi50", "M": 64, "N": 128, "K": 256, "GEMMK": 0, "KREG": 1, "MWG": 32, "NWG": 64, "KWG": 32, "MDIMC": 8,
        "NDIMC": 16, "MDIMA": 8, "NDIMB": 16, "KWI": 2, "VWM": 2, "VWN": 1, "STRM": 1, "STRN": 0, "SA": 1, "SB": 1,
        "time_s": 1e-5, "err": None, "kept": "all",
    }  # fmt: skip
    (group,), notes = load(tmp_path, row, {**row, "SA": 0}, name="gemm_clblast_new__mit.csv")
    # i is CLBlast's N: consecutive rows of a thread; j its M: two virtual threads of two elements.
    assert group.points.tolist() == [[2, 1, 16, 1, 4, 2, 2, 8, 1, 2, 8, 16, 2, 512, 1, 2]]
    assert group.workload == anatune.matmul(128, 64, 256, transpose_a=True)
    assert group.hardware.compiler.registers_per_thread == group.hardware.registers.per_thread == 256
    assert notes == ["gemm_clblast_new__mit: 1 rows do not stage both operands (SA, SB), left out"]


def test_every_point_multiplies_to_its_extents():
    for group in recorded_gpu.load_groups(RECORDED):
        at = 0
        for axis in group.workload.axes:
            width = 5 if axis.kind == "spatial" else 3
            assert (group.points[:, at : at + width].prod(axis=1) == axis.extent).all()
            at += width
        assert group.points.shape[1] == at + 3


def test_the_model_is_not_needed_for_regret_of_a_perfect_one():
    for group in recorded_gpu.load_groups(RECORDED):
        legal = np.ones(len(group.points), dtype=bool)
        perfect = np.where(np.isfinite(group.time_s), group.time_s, math.inf)
        assert metrics.top_k_regret(perfect, group.time_s, legal, (1,)) == {1: 1.0}
