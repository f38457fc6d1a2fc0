from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from anatune.core.workload.nest import Access, Axis, Term, Workload
from anatune.core.workload.operators import conv2d, matmul, max_pool2d
from anatune.errors import UnknownNameError, WorkloadError
from tests.wording import refuses


def test_quantities_of_a_matmul() -> None:
    workload = matmul(512, 4096, 1024, epilogue=("bias",))
    assert workload.num_points == 512 * 4096 * 1024
    assert workload.flop == 2 * workload.num_points
    assert workload.compulsory_bytes == 4 * (512 * 1024 + 1024 * 4096 + 512 * 4096 + 4096)
    assert [axis.name for axis in workload.spatial_axes] == ["i", "j"]
    assert [axis.name for axis in workload.reduction_axes] == ["k"]
    assert workload.reads[0].footprint({"i": 8, "k": 4}) == 32
    assert workload.reads[0].uses("k")
    assert not workload.reads[0].uses("j")
    assert workload.describe() == "matmul+bias i=512 j=4096 k=1024 float32 (4.295 GFLOP)"


def test_footprint_of_a_strided_window_overlaps() -> None:
    data = conv2d(1, 4, 9, 9, 4, 3, 3, stride=2).tensor("data")
    assert data.footprint({"y": 4, "ry": 3, "x": 1, "rx": 3, "rc": 4}) == 4 * 9 * 3
    assert data.footprint({}) == 1


def test_strided_reads_skip_elements_and_padding_is_free() -> None:
    skipping = conv2d(1, 256, 56, 56, 128, 1, 1, stride=2)
    assert skipping.tensor("data").touched_elements(skipping.extents) == 256 * 28 * 28
    assert skipping.compulsory_bytes == 4 * (256 * 28 * 28 + 128 * 256 + 128 * 28 * 28)
    padded = conv2d(1, 1, 5, 5, 1, 3, 3, padding=1)
    assert padded.tensor("data").touched_elements(padded.extents) == 25
    gaps = max_pool2d(1, 1, 8, 8, 2, 2, stride=3)
    assert gaps.tensor("data").touched_elements(gaps.extents) == 36


def test_counting_strided_reads_of_a_huge_tensor_stays_a_lower_bound() -> None:
    size = 3 * 7 * 10**8 + 2
    workload = conv2d(1, 1, 1, size, 1, 1, 2, stride=3)
    assert workload.tensor("data").touched_elements(workload.extents) == workload.extents["x"] == 7 * 10**8 + 1


def test_output_axes_follow_the_layout() -> None:
    assert conv2d(1, 2, 3, 3, 2, 1, 1).output_axes == ("n", "f", "y", "x")
    assert conv2d(1, 2, 3, 3, 2, 1, 1, layout="NHWC", groups=2).output_axes == ("n", "y", "x", "g", "f")


def test_tensor_by_name() -> None:
    workload = matmul(2, 3, 4, epilogue=("add",))
    assert workload.tensor("residual").shape == (2, 3)
    assert workload.tensor("C") is workload.write
    with refuses(UnknownNameError):
        workload.tensor("D")


def test_key_is_stable_across_processes_and_distinguishes() -> None:
    code = "from anatune.core.workload.operators import matmul; print(matmul(2, 3, 4).key)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert other == matmul(2, 3, 4).key
    assert len({matmul(2, 3, 4).key, matmul(2, 3, 5).key, matmul(2, 3, 4, dtype="int8").key}) == 3


def test_json_round_trip() -> None:
    workload = conv2d(1, 4, 5, 5, 4, 3, 3, padding=1, groups=2, epilogue=("bias", "relu"))
    assert Workload.from_json(workload.to_json()) == workload
    assert hash(Workload.from_json(workload.to_json().encode())) == hash(workload)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"operator": "matmul"}',
        b"\xff\xfe",
        matmul(7, 2, 2).to_json().replace("7", "0"),
        matmul(7, 2, 2).to_json().replace("7", "7.5"),
        matmul(7, 2, 2).to_json().replace("float32", "float33"),
        matmul(7, 2, 2).to_json().replace("multiply_add", "divide"),
        matmul(7, 2, 2).to_json().replace('"i"', '"q"', 1),
        matmul(7, 2, 2).to_json().replace('"coefficient":1', '"coefficient":-1'),
    ],
)
def test_damaged_json_is_one_clear_line(text: str | bytes) -> None:
    with pytest.raises(WorkloadError) as caught:
        Workload.from_json(text)
    assert "\n" not in str(caught.value)


def test_workloads_are_checked_when_built_by_hand() -> None:
    good = matmul(2, 3, 4)
    i, j, k = good.axes
    with refuses(WorkloadError):
        msgspec.structs.replace(good, axes=(i, j, k, Axis("i", 2, "reduction")))
    with refuses(WorkloadError):
        msgspec.structs.replace(good, axes=(k, i, j))
    with refuses(WorkloadError):
        msgspec.structs.replace(good, axes=(i, j, Axis("k", 4, "spatial")))
    with refuses(WorkloadError):
        msgspec.structs.replace(good, reads=(Access("A", "float32", (2,), ((Term("i"),), ()), (0, 0)),))
    with refuses(WorkloadError):
        msgspec.structs.replace(good, reads=(Access("A", "float32", (0,), ((Term("i"),),), (0,)),))
    with refuses(WorkloadError):
        msgspec.structs.replace(good, reads=())
    with refuses(WorkloadError):
        Axis("i", True, "spatial")


def test_import_is_light() -> None:
    code = (
        "import sys, anatune.core.workload.text;print(sorted({'numpy', 'pandas', 'scipy', 'numba'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


_PRODUCT = matmul(2, 3, 4, epilogue=("bias", "add"))
_A, _B = _PRODUCT.reads
_TERM = Term("k")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Term("k", 2**31),
        lambda: Term("k", True),
        lambda: Axis("i j", 4, "spatial"),
        lambda: Axis("i", 2**31, "spatial"),
        lambda: Axis("i", 4, "serial"),
        *(
            lambda name=name: msgspec.structs.replace(_A, tensor=name)
            for name in ("", "1a", "A;", "lambda", "T", "smem", "float", "frag_A", "k1_k", "A_copy", 5)
        ),
        lambda: msgspec.structs.replace(_A, dtype="fp8"),
        lambda: msgspec.structs.replace(_A, shape=[2, 4]),
        lambda: msgspec.structs.replace(_A, shape=(2, 2**40)),
        lambda: msgspec.structs.replace(_A, offsets=(0, -(2**31))),
        lambda: msgspec.structs.replace(_A, indices=((_TERM, _TERM), ())),
        lambda: replaced(reads=(_A, _A)),
        lambda: replaced(reads=(_A, msgspec.structs.replace(_B, tensor="C"))),
        lambda: replaced(reads=(_A,)),
        lambda: replaced(reads=[_A, _B]),
        lambda: replaced(body="average"),
        lambda: replaced(reads=(_A, msgspec.structs.replace(_B, dtype="int8"))),
        lambda: replaced(write=msgspec.structs.replace(_PRODUCT.write, dtype="int32")),
        lambda: replaced(write=msgspec.structs.replace(_PRODUCT.write, shape=(2, 2))),
        lambda: replaced(write=msgspec.structs.replace(_PRODUCT.write, offsets=(1, 0))),
        lambda: replaced(epilogue=("mish",)),
        lambda: replaced(epilogue=("bias",)),
        lambda: replaced(epilogue=("add", "bias")),
        lambda: replaced(flop_per_point=-1),
    ],
)
def test_nests_that_nothing_can_be_made_of_are_refused(make) -> None:
    with refuses(WorkloadError) as caught:
        make()
    assert "\n" not in str(caught.value)


def replaced(**fields: object) -> Workload:
    return msgspec.structs.replace(_PRODUCT, **fields)


def test_results_of_several_axes_in_one_dimension_are_nests_of_their_own() -> None:
    grouped = conv2d(1, 6, 5, 5, 4, 3, 3, groups=2)
    assert Workload.from_json(grouped.to_json()) == grouped
    write = grouped.write
    doubled = tuple(tuple(Term(term.axis) for term in terms) for terms in write.indices)  # g + f instead of 2 g + f
    with refuses(WorkloadError):
        msgspec.structs.replace(grouped, write=msgspec.structs.replace(write, indices=doubled))
