"""The benchmark of awkward shapes: its fixed list, its neighbours, its ratios."""

import json
import math
from dataclasses import replace

import pytest

import anatune
from anatune.core.workload.text import parse_workload
from bench.gpu import awkward_plans as awkward
from bench.gpu.awkward_shapes import AWKWARD, FOUR, MATVECS, Convolution, Product, Reduction
from tests.wording import refuses

GPU = anatune.hardware("rtx3090")
SHAPES = [*AWKWARD, *FOUR, *MATVECS]


def test_the_list_is_sixty_different_workloads_that_are_not_smooth():
    assert len(AWKWARD) == len({shape.name for shape in AWKWARD}) == 60
    for shape in AWKWARD:
        smooth = shape.neighbour()
        assert smooth != shape
        assert smooth.neighbour() == smooth
        assert smooth.workload().flop > shape.workload().flop
    assert {shape.name for shape in FOUR} == set(awkward.FOUR_AIMS)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_its_name_is_what_the_command_line_takes(shape):
    assert parse_workload(shape.name) == shape.workload()


def test_neighbours():
    assert Product(509, 64, 65).neighbour() == Product(512, 64, 128)
    assert Product(35, 35, 64, batch=13).neighbour() == Product(64, 64, 64, batch=13)
    image = Convolution(288, 35, 80, (3, 3), stride=2)
    outputs = [shape.workload().extents["y"] for shape in (image, image.neighbour())]
    assert outputs == [17, 24]
    assert (image.neighbour().c, image.neighbour().k, image.neighbour().images) == (320, 128, 1)
    tall = Convolution(64, 17, 64, (7, 1), padding=(3, 0)).neighbour().workload()
    assert (tall.extents["y"], tall.extents["x"]) == (24, 24)
    assert Reduction((3, 100, 7, 9), (2, 3)).neighbour() == Reduction((3, 128, 8, 16), (2, 3))


def plan(name="a", time_s=10e-6, flop=1e6, floor_s=0.0, guarantee="certified"):
    return awkward.Planned(name, time_s, flop, floor_s, "cuda", "i=1", "fma", {"fma_s": time_s}, guarantee)


def test_launches_do_not_scale_and_memory_is_a_floor():
    smooth = plan("b", time_s=22e-6, flop=2e6)
    row = awkward.Row(plan(time_s=17e-6), smooth, peak_flop_per_s=1e12, launch_s=2e-6)
    assert row.ratio == row.scaled == pytest.approx(15 / 10)
    assert row.whole == pytest.approx(17 / 12)
    assert row.share == pytest.approx(1e6 / 17e-6 / 1e12)
    bound = replace(row, plan=plan(time_s=17e-6, floor_s=12e-6))
    assert bound.scaled == pytest.approx(1.5)
    assert bound.ratio == pytest.approx(15 / 12)
    assert bound.whole == pytest.approx(17 / 14)
    assert bound.bandwidth == pytest.approx(12 / 17)
    assert math.isnan(replace(row, neighbour=None).ratio)
    assert not replace(row, plan=plan(time_s=(1.6 * 11 + 2 - 1e-6) * 1e-6)).is_far
    assert replace(row, plan=plan(time_s=(1.6 * 11 + 2 + 1e-6) * 1e-6)).is_far


def test_compulsory_bytes_are_those_that_are_read():
    bandwidth = GPU.dram.bandwidth_bytes_per_s * GPU.dram.reachable_fraction
    assert awkward.compulsory_s(anatune.matmul(2, 3, 5), GPU) == pytest.approx(4 * (10 + 15 + 6) / bandwidth)
    strided = anatune.conv2d(1, 8, 16, 16, 8, 1, 1, stride=2)
    assert awkward.compulsory_s(strided, GPU) == pytest.approx(4 * (8 * 8 * 8 + 64 + 8 * 8 * 8) / bandwidth)


def test_program(tmp_path, capsys):
    awkward.main(["--hw", "rtx3090", "--only", "matmul 49x*", "--json", str(tmp_path / "a.json")])
    shown = capsys.readouterr().out
    assert "matmul 49x1024x1024" in shown
    assert "The four" not in shown
    found = json.loads((tmp_path / "a.json").read_bytes())["devices"]["rtx3090"]
    assert [row["plan"]["name"] for row in found["workloads"]] == ["matmul 49x1024x1024", "matmul 49x384x1536"]
    first = found["workloads"][0]
    assert first["plan"]["time_s"] == anatune.plan(anatune.matmul(49, 1024, 1024), GPU, 1).predictions[0].time_s
    assert found["geometric_mean"] == pytest.approx(math.sqrt(math.prod(row["ratio"] for row in found["workloads"])))
    for arguments in (["--only", "nothing"], ["--hw", "xeon_8480", "--only", "matmul 49x*"]):
        with refuses(SystemExit):
            awkward.main(arguments)
