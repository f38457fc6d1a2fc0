"""Schedules: JSON both ways, content hash, one-line description."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.errors import SpaceError
from anatune.templates.cuda.model.model import CudaModel
from tests.naive_gpu import WORKLOADS, gpu
from tests.wording import refuses

MATMUL = anatune.matmul(16, 12, 8)


def schedule(**change: object) -> Schedule:
    space = CudaModel(MATMUL, gpu("rtx3090")).space
    made = space.schedule({"i": (2, 2, 2, 2, 1), "j": (3, 1, 4, 1, 1), "k": (2, 2, 2)}, 64, {"A": 2})
    return msgspec.structs.replace(made, **change)


@pytest.mark.parametrize("name", WORKLOADS)
def test_json_round_trip(name: str) -> None:
    for made in anatune.space(WORKLOADS[name], gpu("mi50")).sample(5, seed=2):
        again = Schedule.from_json(made.to_json())
        assert again == made
        assert again.key == made.key
        assert hash(again) == hash(made)
        assert Schedule.from_json(made.to_json().encode()) == made


def test_the_key_covers_everything() -> None:
    made = schedule()
    others = [
        schedule(workload=anatune.matmul(16, 12, 8, transpose_a=True)),
        schedule(hardware=gpu("rtx4090")),
        schedule(template="cpu"),
        schedule(tiles=made.tiles | {"k": (4, 2, 1)}),
        schedule(unroll=16),
        schedule(vector={"A": 2, "B": 2}),
        schedule(options={"packed": ("A",)}),
    ]
    assert len({made, *others}) == len({made.key, *(other.key for other in others)}) == 1 + len(others)
    assert made.key == schedule().key
    assert len(made.key) == 16
    assert int(made.key, 16) >= 0


def test_the_key_does_not_depend_on_order() -> None:
    made = schedule()
    assert schedule(tiles=dict(reversed(made.tiles.items()))).key == made.key
    assert schedule(vector=dict(reversed(made.vector.items()))) == made


def test_the_key_is_the_same_in_every_process() -> None:
    code = (
        "import anatune; s = anatune.space(anatune.matmul(16, 12, 8), anatune.hardware('rtx3090'));"
        "print(s.schedule({'i': (2, 2, 2, 2, 1), 'j': (3, 1, 4, 1, 1), 'k': (2, 2, 2)}, 64, {'A': 2}).key)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == schedule().key


def test_description() -> None:
    assert schedule().describe() == "i=2x2x2x2x1 j=3x1x4x1x1 k=2x2x2 unroll=64 A:v2 B:v1"
    assert schedule(options={"parallel": True}).describe().endswith("parallel=True")


def test_immutable() -> None:
    with pytest.raises(AttributeError):
        schedule().unroll = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1, 2]",
        "not json",
        b"\xff\xfe",
        schedule().to_json().replace('"unroll":64', '"unroll":"64"'),
        schedule().to_json().replace('"unroll":64', '"unrol":64'),
        schedule().to_json().replace("[2,2,2]", "[2,2,2.5]"),
    ],
)
def test_damaged_json_is_refused(text: str | bytes) -> None:
    with refuses(SpaceError) as error:
        Schedule.from_json(text)
    assert "Schedule.to_json()" in str(error.value)


def test_damaged_parts_are_refused() -> None:
    """Errors of the workload and the hardware inside are errors of anatune, too."""
    for old, new in (('"extent":16', '"extent":0'), ('"num_sms":82', '"num_sms":0')):
        with pytest.raises(anatune.AnatuneError):
            Schedule.from_json(schedule().to_json().replace(old, new))
