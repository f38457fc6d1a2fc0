"""Parameters of somebody's kernel become tiles of the template, or the message says which name is missing."""

import pytest

import anatune
from anatune.adapters.kernel_tuner.names import CLBLAST, clblast_gemm, pad_workload, roles_of, tile_points
from anatune.errors import SpaceError
from tests.wording import refuses

MATMUL = anatune.matmul(64, 128, 32)
PARAMETERS = ("tx", "ty", "wx", "wy", "bk")
NAMES = {
    "threads_i": "ty", "work_i": "wy", "inner_i": 1, "threads_j": "tx", "work_j": "wx", "inner_j": 1, "block_k": "bk",
}  # fmt: skip


def test_threads_and_work_make_blocks():
    points, valid, weight = tile_points(NAMES, MATMUL, PARAMETERS, [(16, 4, 2, 8, 16)])
    assert points.tolist() == [[2, 8, 4, 1, 1, 4, 2, 16, 1, 1, 2, 16, 1, 512, 1, 1]]
    assert valid.all()
    assert weight.tolist() == [1.0]


def test_the_template_decodes_the_points():
    points, _, _ = tile_points(NAMES, MATMUL, PARAMETERS, [(16, 4, 2, 8, 16)])
    schedule = anatune.space(MATMUL, anatune.hardware("rtx3090")).schedule_of(points[0])
    assert schedule.tiles == {"i": (2, 8, 4, 1, 1), "j": (4, 2, 16, 1, 1), "k": (2, 16, 1)}


@pytest.mark.parametrize("given", [("block", "threads"), ("block", "work"), ("threads", "work")])
def test_two_of_block_threads_and_work_are_enough(given):
    values = {"block_i": 32, "threads_i": 4, "work_i": 8, "block_j": 32, "threads_j": 16, "work_j": 2}
    names = {f"{kind}_{axis}": values[f"{kind}_{axis}"] for kind in given for axis in "ij"} | {"block_k": 16}
    points, valid, _ = tile_points(names, MATMUL, ("any",), [(1,)])
    assert points[0, :10].tolist() == [2, 1, 4, 1, 8, 4, 1, 16, 1, 2]
    assert valid.all()


def test_blocks_reach_over_the_end():
    points, valid, _ = tile_points(NAMES, anatune.matmul(60, 130, 30), PARAMETERS, [(16, 4, 2, 8, 16)])
    assert points[0, :5].prod() == 64
    assert points[0, 5:10].prod() == 160
    assert points[0, 10:13].prod() == 32
    assert valid.all()


def test_values_that_do_not_fit_are_invalid():
    names = {"block_i": "a", "threads_i": "b", "block_j": 32, "threads_j": 32, "block_k": 8}
    _, valid, _ = tile_points(names, MATMUL, ("a", "b"), [(32, 4), (32, 5), (4, 8), (0, 1)])
    assert valid.tolist() == [True, False, False, False]


def test_clblast_names_are_those_of_its_kernel():
    parameters = (
        "MWG", "NWG", "KWG", "MDIMC", "NDIMC", "KWI", "VWM", "VWN", "STRM", "STRN", "SA", "SB", "MDIMA", "NDIMB",
    )  # fmt: skip
    row = (64, 32, 16, 8, 16, 2, 4, 1, 1, 0, 1, 0, 32, 32)
    points, valid, weight = tile_points(CLBLAST, clblast_gemm(128, 64, 32), parameters, [row])
    assert points.tolist() == [[2, 1, 16, 1, 2, 2, 2, 8, 1, 4, 2, 8, 2, 512, 1, 4]]
    assert valid.all()
    assert weight[0] > 1  # SB = 0


def test_what_few_neighbours_fetch_or_nobody_stages_costs_a_little():
    names = {**NAMES, "fetch_A": "fetch", "staged_B": "staged"}
    rows = [(16, 4, 2, 8, 16, *more) for more in ((64, 1), (32, 1), (16, 1), (8, 1), (32, 0))]
    _, _, weight = tile_points(names, MATMUL, (*PARAMETERS, "fetch", "staged"), rows)
    assert weight[0] == weight[1] == 1
    assert 1 < weight[2] < weight[3] < 1.1
    assert 1 < weight[4] < 1.1


def test_a_convolution_has_roles_for_its_axes():
    roles = roles_of(anatune.conv2d(1, 8, 14, 14, 16, 3, 3, padding=1))
    assert {"block_f", "threads_x", "work_y", "block_rc", "inner_rx", "unroll"} <= set(roles)


def test_axes_of_one_element_need_no_roles():
    image = anatune.conv2d(1, 1, 18, 18, 1, 3, 3)
    names = {"threads_y": 4, "work_y": 1, "threads_x": 16, "work_x": 1, "block_ry": 3, "block_rx": 3}
    ones = {f"{kind}_{axis}": 1 for axis in "nf" for kind in ("threads", "work")} | {"block_rc": 1}
    points, valid, _ = tile_points(names, image, ("a",), [(1,)])
    assert valid.all()
    assert points.tolist() == tile_points(names | ones, image, ("a",), [(1,)])[0].tolist()


@pytest.mark.parametrize(
    "names",
    [
        {**NAMES, "blok_i": 4},
        {**NAMES, "threads_i": "tz"},
        {**NAMES, "threads_i": 4.5},
        {k: v for k, v in NAMES.items() if k != "work_i"},
        {k: v for k, v in NAMES.items() if k != "block_k"},
        {},
        {**NAMES, "inner_i": lambda config: "many"},
        {**NAMES, "inner_i": lambda config: config["wx"] / 4},
    ],
)
def test_wrong_names_are_one_line(names):
    with refuses(SpaceError) as error:
        tile_points(names, MATMUL, PARAMETERS, [(16, 4, 2, 8, 16)])
    assert "\n" not in str(error.value)


def test_rounded_workloads_are_matrix_products():
    assert pad_workload(MATMUL, MATMUL.extents) is MATMUL
    transposed = anatune.matmul(60, 64, 32, transpose_a=True)
    assert pad_workload(transposed, {"i": 64, "j": 64, "k": 32}) == anatune.matmul(64, 64, 32, transpose_a=True)
    conv = anatune.conv2d(1, 8, 14, 14, 16, 3, 3, padding=1)
    assert pad_workload(conv, {**conv.extents, "f": 32}) is conv  # guarded, not padded
