"""Boards of ncnn's table: their specs, number formats and scores, on a small table."""

import gzip

import pytest

pytest.importorskip("pandas", reason="tables are read by pandas")
pytest.importorskip("tvm", reason="networks are read by TVM")

import anatune
from bench.replay import boards
from bench.replay.boards import Result

TABLE = """board,threads,powersave,gpu_device,model,min_ms,max_ms,avg_ms
Raspberry Pi 4 Model B Broadcom BCM2711B0,1,0,-1,mobilenet,120.0,130.0,125.0
Raspberry Pi 4 Model B Broadcom BCM2711B0,1,0,-1,resnet18,200.0,210.0,205.0
Raspberry Pi 4 Model B Broadcom BCM2711B0,4,0,-1,mobilenet,50.0,51.0,50.0
Station-M3/ROC-RK3588S-PC,1,0,-1,mobilenet,22.0,23.0,22.0
An unknown board,1,0,-1,mobilenet,22.0,23.0,22.0
"""


@pytest.fixture
def read(tmp_path):
    (tmp_path / boards.TABLE).write_bytes(gzip.compress(TABLE.encode()))
    return boards.read_boards(tmp_path)


def test_boards_have_specs_at_their_clocks_and_number_formats(read):
    slow, fast = read
    assert slow.recorded_s == {"mobilenet": 0.12, "resnet18": 0.2}
    assert (slow.core.spec, slow.has_halves, fast.has_halves) == ("cortex_a72", False, True)
    packaged = anatune.hardware("cortex_a72")
    assert slow.spec.compute.clock_hz == 1.8e9
    assert slow.spec.peak_flop_per_s("float32") == pytest.approx(1.2 * packaged.peak_flop_per_s("float32"))
    rk3588 = anatune.hardware("rk3588")
    assert fast.spec.peak_flop_per_s("float32") == 2 * rk3588.peak_flop_per_s("float32")
    assert fast.spec.l2.size_bytes == 2 * rk3588.l2.size_bytes
    assert fast.spec.fp32_lanes == 8
    assert boards.choose_boards([slow, fast, slow]) == [slow, fast]


def test_scores_are_printed(read, capsys):
    results = [Result(read[0], "mobilenet", 0.06, 0.12, "a kernel"), Result(read[0], "resnet18", 0.22, 0.2, "another")]
    boards.print_boards(results)
    boards.print_networks(results)
    said = capsys.readouterr().out
    assert "| float32 | 2 | 0.80 (0.50 to 1.10) | 30 % | 1.000 |" in said
    assert said.index("| 0.50 | a kernel |") < said.index("| 1.10 | another |")
