"""The picture of README is taken of a page, and is small."""

from pathlib import Path

import pytest

import anatune
from bench.pictures import take

pytestmark = pytest.mark.slow

PICTURE = Path(__file__).parents[3] / "docs" / "pictures" / "roofline.png"
MOST_BYTES = 150_000


def size(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_the_picture_is_taken_of_a_page(browser, tmp_path):
    path = tmp_path / "plan.png"
    take(browser, anatune.plan(anatune.matmul(16, 16, 16), "rtx3090", 3, distinct=True, correction="none"), path)
    assert size(path)[0] == size(PICTURE)[0]
    assert abs(size(path)[1] - size(PICTURE)[1]) <= 20
    assert PICTURE.stat().st_size < MOST_BYTES
