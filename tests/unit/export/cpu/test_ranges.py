"""A range in C: every extent through one entry, constants packed once, extents outside refused."""

import ctypes

import numpy as np
import pytest

import anatune
from anatune.templates.cpu.range_space import schedule_at
from tests.machine import host

pytest.importorskip("tvm")
from anatune.codegen.cpu.dispatch import Dispatch
from anatune.export.cpu.ranges import write_c_range
from anatune.measure.cpu.blocks import ArgumentBlock

HW = host()
LANES = HW.compute.simd_bits // 32


def rows(most, largest, width, packed, parallel):
    space = anatune.space(anatune.matmul(most, 4 * LANES, 24), HW)
    tiles = {"i": (1, 1, 1, 1, most), "j": (2, 1, 1, 2 * LANES // width, width)}
    return schedule_at(space.schedule(tiles, packed=packed, parallel=parallel), "i", largest)


def block(rng, *shape):
    made = ArgumentBlock("float32", shape, guarded=True)
    made.array[...] = rng.standard_normal(shape)
    return made


def pointer(made):
    return ctypes.c_void_p(made.array.ctypes.data)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_one_entry_serves_every_extent(tmp_path, threads):
    parallel = threads > 1
    programs = (
        rows(2, 50, 2 * LANES, ("B",), parallel),
        rows(6, 31, LANES, ("B",), parallel),
        rows(5, 40, LANES, (), parallel),
    )
    dispatch = Dispatch("i", 2, programs, (9, 31, 40, 50), (0, 1, 2, 0))
    made = write_c_range(dispatch, "product", tmp_path, threads=threads)
    assert (
        "int product_packed(int64_t extent, const float *A, const float *B_packed, float *C);"
        in (tmp_path / "product.h").read_text()
    )
    library = ctypes.CDLL(str(tmp_path / made.library))
    assert library.product_supported() == 1
    rng = np.random.default_rng(0)
    weights = block(rng, 24, 4 * LANES)
    packed = ArgumentBlock("float32", made.functions[1].arguments[1].shape, guarded=True)
    assert library.product_pack_B(pointer(weights), pointer(packed)) == 0
    assert packed.intact
    for extent in range(2, 51):
        data, result = block(rng, extent, 24), ArgumentBlock("float32", (extent, 4 * LANES), guarded=True)
        for name, constant in (("product_packed", packed), ("product", weights)):
            result.array[...] = np.nan
            called = getattr(library, name)
            assert called(ctypes.c_int64(extent), pointer(data), pointer(constant), pointer(result)) == 0
            np.testing.assert_allclose(result.array, data.array @ weights.array, rtol=1e-4, atol=1e-4)
            assert result.intact
            assert data.intact
    for extent in (-1, 0, 1, 51, 2**40):
        assert library.product(ctypes.c_int64(extent), pointer(data), pointer(weights), pointer(result)) == -5
    assert library.product_packed(ctypes.c_int64(2), pointer(data), None, pointer(result)) == -1
    assert library.product_pack_B(None, pointer(packed)) == -1
