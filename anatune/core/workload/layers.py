"""Named layers of the networks that the papers measure: ``layer("bert:M0")``.

bert:M0-M5, resnet50:R0-R12, yolo9000:Y0-Y10
    "Accelerated Auto-Tuning of GPU Kernels for Tensor Computations" (ICS 2024), Table 1. Convolutions: one
    image, stride 2 for R0, R4, R7 and R10, zeros of half the kernel around the input (as in its records).
resnet18:C1-C12
    "Evolutionary Algorithm with Non-parametric Surrogate Model for Tensor Program Optimization" (NoSE),
    Table II.
yolo9000:0, 2, 4, 5, 8, 9, 12, 13, 18, 19, 23
    "Autotuning Convolutions is Easier Than You Think" (TACO 2022), Fig. 8. The numbers are the network's own; missing
    layers are no convolutions, or have the size of a listed one. Layer 23 has 28269 output channels; the paper padded
    it to 28272 to vectorise it.

Deviations
------
bert : Table 1 says M, N, K and is followed here (M1 is matmul 512x4096x1024). Its records call the same rows
    mm_m512_n1024_k4096, N and K exchanged. Their rates support the table: on an RTX 3090 M0 reaches only
    3.2 TFLOP/s, which fits a 512 x 64 result; M1 and M3 beat M4 and M5, which fits more columns.
resnet18 : Table II gives the 1x1 kernels a padding of 1, which the network itself does not have. It is
    no slip: the sizes of the search spaces (C3: 903168, C11: 3564000) need outputs of 58 x 58 and 8 x 8.
    Followed here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial

from anatune.arguments import quote
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import conv2d, matmul
from anatune.errors import UnknownNameError

_BERT: dict[str, tuple[int, int, int]] = {  # M, N, K
    "M0": (512, 64, 1024),
    "M1": (512, 4096, 1024),
    "M2": (512, 64, 768),
    "M3": (512, 3072, 768),
    "M4": (512, 1024, 4096),
    "M5": (512, 768, 3072),
}
_Convolutions = dict[str, tuple[int, int, int, int, int]]  # output channels, input channels, H = W, R = S, stride
_RESNET50: _Convolutions = {
    "R0": (64, 3, 224, 7, 2),
    "R1": (64, 64, 56, 1, 1),
    "R2": (64, 64, 56, 3, 1),
    "R3": (256, 64, 56, 1, 1),
    "R4": (128, 256, 56, 1, 2),
    "R5": (128, 128, 28, 3, 1),
    "R6": (512, 128, 28, 1, 1),
    "R7": (256, 512, 28, 1, 2),
    "R8": (256, 256, 14, 3, 1),
    "R9": (1024, 256, 14, 1, 1),
    "R10": (512, 1024, 14, 1, 2),
    "R11": (512, 512, 7, 3, 1),
    "R12": (2048, 512, 7, 1, 1),
}
_YOLO9000: _Convolutions = {
    "Y0": (32, 3, 544, 3, 1),
    "Y1": (64, 32, 272, 3, 1),
    "Y2": (128, 64, 136, 3, 1),
    "Y3": (64, 128, 136, 1, 1),
    "Y4": (256, 128, 68, 3, 1),
    "Y5": (128, 256, 68, 1, 1),
    "Y6": (512, 256, 68, 3, 1),
    "Y7": (512, 256, 34, 3, 1),
    "Y8": (256, 512, 34, 1, 1),
    "Y9": (1024, 512, 17, 3, 1),
    "Y10": (512, 1024, 17, 1, 1),
}
_OWN_NUMBERS = {
    "0": "Y0", "2": "Y1", "4": "Y2", "5": "Y3", "8": "Y4", "9": "Y5", "12": "Y7", "13": "Y8", "18": "Y9", "19": "Y10",
}  # fmt: skip
"""Number of a layer in the network -> its name in the table of the other paper, if it is listed there."""
_YOLO9000 |= {number: _YOLO9000[name] for number, name in _OWN_NUMBERS.items()} | {"23": (28269, 1024, 17, 1, 1)}
_RESNET18: _Convolutions = {  # all zero padding is 1, of C1 3: see the module's docstring
    "C1": (64, 3, 224, 7, 2),
    "C2": (64, 64, 56, 3, 1),
    "C3": (64, 64, 56, 1, 1),
    "C4": (128, 64, 56, 3, 2),
    "C5": (128, 64, 56, 1, 2),
    "C6": (128, 128, 28, 3, 1),
    "C7": (256, 128, 28, 3, 2),
    "C8": (256, 128, 28, 1, 2),
    "C9": (256, 256, 14, 3, 1),
    "C10": (512, 256, 14, 3, 2),
    "C11": (512, 256, 14, 1, 2),
    "C12": (512, 512, 7, 3, 1),
}


def _convolution(row: tuple[int, int, int, int, int], least_padding: int = 0) -> Workload:
    """Return a row of a table as an NCHW convolution of one image, padded by at least half the kernel."""
    filters, channels, size, kernel, stride = row
    padding = max(kernel // 2, least_padding)
    return conv2d(1, channels, size, size, filters, kernel, kernel, stride=stride, padding=padding)


_NETWORKS: dict[str, dict[str, Callable[[], Workload]]] = {
    "bert": {name: partial(matmul, *row) for name, row in _BERT.items()},
    "resnet50": {name: partial(_convolution, row) for name, row in _RESNET50.items()},
    "yolo9000": {name: partial(_convolution, row) for name, row in _YOLO9000.items()},
    "resnet18": {name: partial(_convolution, row, 1) for name, row in _RESNET18.items()},
}


def layer_names() -> list[str]:
    """Return all names that `layer` accepts, "network:layer", grouped by network."""
    return [f"{network}:{name}" for network, members in _NETWORKS.items() for name in members]


def layer(name: str) -> Workload:
    """Return a layer of the networks that the papers measure.

    Parameters
    ----------
    name : str
        Name "network:layer", see `layer_names`; upper and lower case are equal.

    Raises
    ------
    UnknownNameError
        The network or its layer is unknown; the message lists the known ones.

    Examples
    --------
    >>> layer("resnet18:C2").extents
    {'n': 1, 'f': 64, 'y': 56, 'x': 56, 'rc': 64, 'ry': 3, 'rx': 3}
    """
    network, colon, short = name.strip().partition(":") if isinstance(name, str) else ("", "", "")
    if not colon:
        raise UnknownNameError(
            f"layer {quote(name)} is unknown, expected network:layer with a network of {', '.join(_NETWORKS)}; "
            "write for example resnet18:C2"
        )
    members = _NETWORKS.get(network.lower())
    if members is None:
        close = difflib.get_close_matches(network.lower(), _NETWORKS, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]}?" if close else "; write for example resnet18:C2"
        raise UnknownNameError(f"layer {name!r}: network {network!r} is unknown, expected {', '.join(_NETWORKS)}{hint}")
    if short.upper() not in members:
        close = difflib.get_close_matches(short.upper(), members, n=1, cutoff=0.5)
        hint = f"; did you mean {network.lower()}:{close[0]}?" if close else "; choose one of them"
        raise UnknownNameError(
            f"layer {name!r}: {network.lower()} has no {short!r}, expected {', '.join(members)}{hint}"
        )
    return members[short.upper()]()
