"""Random small schedules of the template "triton": every kind of product, layout, epilogue and option."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import conv1d, conv3d, einsum
from anatune.errors import SpaceError

__all__ = ["DEVICES", "random_schedule"]

DEVICES = ("a100_sxm", "h100_sxm", "b200", "mi300x")
_EXTENTS = (1, 2, 7, 8, 16, 24, 31, 32, 48, 57, 64, 72, 96, 100, 128)
_DEPTHS = (1, 8, 16, 17, 32, 48, 64, 88, 96, 136)
_STEPS = ("relu", "relu6", "silu", "gelu", "gelu_tanh")
_SUBSCRIPTS = (
    ("ik,kj->ij", ((40, 24), (24, 56))),
    ("bhik,bhjk->bhij", ((2, 3, 17, 16), (2, 3, 24, 16))),
    ("iakl,klj->iaj", ((3, 11, 4, 8), (4, 8, 24))),
    ("kabi,kcj->abicj", ((16, 2, 3, 8), (16, 5, 8))),
    ("aibk,jak->abij", ((2, 20, 3, 16), (24, 2, 16))),
    ("ki,kj->ji", ((40, 20), (40, 36))),
)
_DTYPES = ("float16", "bfloat16", "float32")
_FEW_SMS = 3
"""Of a device on which even small problems have several tiles for a program."""


def random_schedule(draw: random.Random, device: str | None = None) -> Schedule:
    """Return a random schedule; its tiles are small beside real ones, so that several of them meet."""
    hardware = anatune.hardware(device or draw.choice(DEVICES))
    assert isinstance(hardware, GpuSpec)
    while True:
        workload = draw.choice((_matmul, _matmul, _batched, _einsum, _conv1d, _conv2d, _conv2d, _conv3d))(draw)
        persistent = draw.random() < 0.25
        spec = _with_few_sms(hardware) if persistent else hardware
        try:
            space = anatune.space(workload, spec, template="triton")
        except SpaceError:
            continue  # one row and one column: no product
        tiles = {index: draw.choice((16, 32, 64)) for index in "mnk"}
        options = {"group_m": draw.choice((1, 2, 3, 8))}
        persistent = persistent and "persistent" in space.columns
        steps = -(-space.extents["k"] // tiles["k"])
        options["split_k"] = 1 if persistent else min(steps, draw.choice((1, 1, 2, 3, 5)))
        if "descriptors" in space.columns:
            options |= {"descriptors": 1 if persistent else draw.choice((0, 1)), "persistent": int(persistent)}
        if persistent and "warp_specialize" in space.columns:
            options["warp_specialize"] = draw.choice((0, 1))
        return space.schedule(tiles, **options)


def _with_few_sms(hardware: GpuSpec) -> GpuSpec:
    """Return a device that is the same otherwise."""
    compute = hardware.compute
    peak = compute.fp32_peak_flop_per_s * _FEW_SMS / compute.num_sms
    few = msgspec.structs.replace(compute, num_sms=_FEW_SMS, fp32_peak_flop_per_s=peak)
    return msgspec.structs.replace(hardware, compute=few)


def _dtype(draw: random.Random) -> str:
    return draw.choice(_DTYPES)


def _epilogue(draw: random.Random) -> Sequence[str]:
    steps = [step for step in ("bias", "add") if draw.random() < 0.4]
    draw.shuffle(steps)
    if draw.random() < 0.5:
        steps.insert(draw.randint(0, len(steps)), draw.choice(_STEPS))
    return steps


def _matmul(draw: random.Random) -> Workload:
    m, n, k = draw.choice(_EXTENTS), draw.choice(_EXTENTS), draw.choice(_DEPTHS)
    return anatune.matmul(
        m, n, k, dtype=_dtype(draw), epilogue=_epilogue(draw),
        transpose_a=draw.random() < 0.4, transpose_b=draw.random() < 0.4,
    )  # fmt: skip


def _batched(draw: random.Random) -> Workload:
    m, n, k = draw.choice(_EXTENTS[2:]), draw.choice(_EXTENTS[2:]), draw.choice(_DEPTHS)
    return anatune.batch_matmul(
        draw.choice((2, 3, 5)), m, n, k, dtype=_dtype(draw), epilogue=_epilogue(draw),
        transpose_a=draw.random() < 0.4, transpose_b=draw.random() < 0.4,
    )  # fmt: skip


def _einsum(draw: random.Random) -> Workload:
    subscripts, shapes = draw.choice(_SUBSCRIPTS)
    return einsum(subscripts, shapes, dtype=_dtype(draw))


def _channels(draw: random.Random) -> tuple[int, int, int]:
    """Return groups, input channels, output channels."""
    groups = draw.choice((1, 1, 1, 2, 3))
    return groups, groups * draw.choice((3, 8, 16, 32)), groups * draw.choice((5, 8, 16, 32))


def _window(draw: random.Random, dimensions: int) -> tuple[list[int], list[int], dict[str, object]]:
    """Return image, window, and how it moves."""
    window = [draw.choice((1, 2, 3) if dimensions == 3 else (1, 2, 3, 5)) for _ in range(dimensions)]
    dilation = [draw.choice((1, 1, 2)) for _ in range(dimensions)]
    reach = [dilation[d] * (window[d] - 1) for d in range(dimensions)]
    image = [reach[d] + draw.choice((1, 2, 5) if dimensions == 3 else (1, 2, 5, 8)) for d in range(dimensions)]
    padding = [draw.randint(0, reach[d]) for d in range(dimensions)]  # no window and no weight sees padding alone
    how: dict[str, object] = {
        "stride": tuple(draw.choice((1, 1, 2) if padding[d] else (1, 2, 3)) for d in range(dimensions)),
        "padding": tuple(padding),
        "dilation": tuple(dilation),
    }
    return image, window, how


def _convolution(
    draw: random.Random, dimensions: int, make: Callable[..., Workload], layouts: tuple[str, str]
) -> Workload:
    groups, channels, outputs = _channels(draw)
    image, window, how = _window(draw, dimensions)
    sizes = (draw.choice((1, 2, 3)), channels, *image, outputs, *window)
    layout = draw.choice(layouts)
    return make(*sizes, **how, groups=groups, layout=layout, dtype=_dtype(draw), epilogue=_epilogue(draw))


def _conv1d(draw: random.Random) -> Workload:
    return _convolution(draw, 1, conv1d, ("NCW", "NWC"))


def _conv2d(draw: random.Random) -> Workload:
    return _convolution(draw, 2, anatune.conv2d, ("NCHW", "NHWC"))


def _conv3d(draw: random.Random) -> Workload:
    return _convolution(draw, 3, conv3d, ("NCDHW", "NDHWC"))
