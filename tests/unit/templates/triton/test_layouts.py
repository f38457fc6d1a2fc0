"""Exchanges of results as Triton 3.9 compiled them, and layouts that hold every result once."""

import pytest

from anatune.templates.triton.layouts import (
    exchange_bytes,
    mma_layout,
    store_layout,
    tcgen05_layout,
    warps_of_mma,
    warps_of_wgmma,
)


@pytest.mark.parametrize(
    ("rows", "columns", "warps", "bits", "expected"),
    [
        (128, 128, 4, 16, 16384),
        (256, 128, 4, 16, 16384),
        (32, 32, 1, 16, 512),
        (128, 128, 4, 32, 16384),
        (64, 64, 16, 16, 8192),
        (16, 16, 8, 16, 512),
    ],
)
def test_exchange_after_mma_sync(rows, columns, warps, bits, expected):
    sums = mma_layout(rows, columns, *warps_of_mma(rows, columns, warps))
    after = store_layout(rows, columns, warps, bits)
    assert exchange_bytes(sums, after, bits, matrix_loads=True, matrix_stores=False) == expected


def test_exchange_after_wgmma_uses_its_stores():
    sums = mma_layout(128, 256, *warps_of_wgmma(128, 8), 256)
    sizes = [
        exchange_bytes(sums, store_layout(128, 256, 8, bits), bits, matrix_loads=True, matrix_stores=True)
        for bits in (16, 32)
    ]
    assert sizes == [32768, 131072]


def test_exchange_after_tcgen05():
    sums = tcgen05_layout(128, 256, 8)
    sizes = [
        exchange_bytes(sums, store_layout(128, 256, 8, bits), bits, matrix_loads=True, matrix_stores=True)
        for bits in (16, 32)
    ]
    assert sizes == [16384, 32768]


@pytest.mark.parametrize("warps", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("rows", [64, 128, 256])
def test_layouts_hold_every_result_once(rows, warps):
    layouts = [mma_layout(rows, 64, *warps_of_mma(rows, 64, warps)), store_layout(rows, 64, warps, 16)]
    if warps >= 4:
        layouts += [mma_layout(rows, 64, *warps_of_wgmma(rows, warps), 64 // warps_of_wgmma(rows, warps)[1])]
    if warps in (4, 8):
        layouts += [tcgen05_layout(rows, 64, warps)]
    for layout in layouts:
        bits = [*layout.registers, *layout.lanes, *layout.warps]
        assert sorted(bits) == list(range((rows * 64).bit_length() - 1))
