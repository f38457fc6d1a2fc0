from __future__ import annotations

import pytest

from anatune.core.workload.layers import layer, layer_names
from anatune.core.workload.operators import conv2d, matmul
from anatune.errors import UnknownNameError
from tests.wording import refuses


def test_every_name_builds_and_names_are_unique() -> None:
    names = layer_names()
    assert len(names) == len(set(names)) == 6 + 13 + 11 + 11 + 12
    for name in names:
        assert layer(name).flop > 0


def test_layers_stand_in_the_papers_order() -> None:
    names = layer_names()
    assert names[:6] == [f"bert:M{number}" for number in range(6)]
    assert names[6:19] == [f"resnet50:R{number}" for number in range(13)]
    assert names[-12:] == [f"resnet18:C{number}" for number in range(1, 13)]


def test_rows_of_the_tables() -> None:
    assert layer("bert:M1") == matmul(512, 4096, 1024)
    assert layer("resnet50:R0") == conv2d(1, 3, 224, 224, 64, 7, 7, stride=2, padding=3)
    assert layer("resnet50:R4") == conv2d(1, 256, 56, 56, 128, 1, 1, stride=2)
    assert layer("yolo9000:Y9") == conv2d(1, 512, 17, 17, 1024, 3, 3, padding=1)
    assert layer("yolo9000:23") == conv2d(1, 1024, 17, 17, 28269, 1, 1)
    assert layer("resnet18:C4") == conv2d(1, 64, 56, 56, 128, 3, 3, stride=2, padding=1)
    assert layer("yolo9000:0") == layer("yolo9000:Y0")


def test_nose_layers_keep_the_padding_of_the_table() -> None:
    # The table's space sizes need these outputs: 58 = 2 * 29 has few factorisations, 8 has many.
    outputs = {name: layer(f"resnet18:{name}").extents["y"] for name in ("C1", "C3", "C5", "C8", "C11")}
    assert outputs == {"C1": 112, "C3": 58, "C5": 29, "C8": 15, "C11": 8}


def test_ics_convolutions_have_the_outputs_of_the_recorded_files() -> None:
    outputs = [layer(f"resnet50:R{number}").extents["y"] for number in range(13)]
    assert outputs == [112, 56, 56, 56, 28, 28, 28, 14, 14, 14, 7, 7, 7]
    outputs = [layer(f"yolo9000:Y{number}").extents["y"] for number in range(11)]
    assert outputs == [544, 272, 136, 136, 68, 68, 68, 34, 34, 17, 17]


def test_case_and_blanks_do_not_matter() -> None:
    assert layer(" YOLO9000:y3 ") == layer("yolo9000:Y3")


@pytest.mark.parametrize("name", ["resnet18:C13", "resnet19:C1", "qqqq:1", "yolo9000:1", "C2", ""])
def test_unknown_names_list_the_known_ones(name: str) -> None:
    with refuses(UnknownNameError) as caught:
        layer(name)
    assert "\n" not in str(caught.value)
