"""``anatune.compare``: predict a model on several devices, none of which need be present, at one or several sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from anatune.arguments import check_flag
from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import HardwareSpec
from anatune.errors import SpaceError
from anatune.measure.named_hardware import HardwareLike, hardware
from anatune.network.compiling.request import CompileRequest
from anatune.network.graph.nodes import HALVES, Graph
from anatune.network.graph.passes.precision import FP8, WIDE, precision_of
from anatune.network.graph.summary import ModelSummary, OperatorSummary, RangeSummary

if TYPE_CHECKING:
    from anatune.network.compiling.targets.cpu import CpuTarget
    from anatune.network.compiling.targets.triton import TritonTarget
    from anatune.network.relax.frontends import ImportedModel
    from anatune.network.relax.ranges import Sizes

__all__ = ["compare"]


def compare(
    model: object,
    example_inputs: object = None,
    *,
    hw: str | Sequence[HardwareLike],
    threads: int | None = None,
    precision: str | None = None,
    accuracy: str = STANDARD,
    sizes: Sizes | None = None,
    dynamic_shapes: object = None,
    state: str | Mapping[str, str] | None = None,
    ranks: int = 1,
    rank_plan: Mapping[str, str] | None = None,
    link_bytes_per_s: float | None = None,
    fused: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> list[ModelSummary]:
    """Predict a model on several GPUs and CPUs: kernels are planned for each of them, and nothing is compiled.

    If one size varies, other than the held size of a state, the model is predicted at the ends of its range and at the
    powers of two between them. Summaries of all devices at the smallest size come first; `ModelSummary.ranges` has the
    size.

    Parameters
    ----------
    model, example_inputs, accuracy, sizes, dynamic_shapes, state
        As `anatune.compile`. A state is predicted at its largest size. Weights may be on PyTorch's meta device.
    hw : str, or sequence of str, Path, GpuSpec or CpuSpec
    threads : int, optional
        Threads of the CPUs; all cores of each by default.
    precision : {"float32", "bfloat16", "float16", "fp8"}, optional
        As `anatune.compile`, but a CPU without instructions for it is predicted in float32. Without it, GPUs beside
        CPUs are predicted in bfloat16 if the model is float32.
    ranks : int
        Number of devices that a module on the meta device is divided over. One of them is predicted, with the inputs
        (caches) of one device. The bytes it sends are a line of `ModelSummary.rows`, with a time if the link is given.
    rank_plan : mapping of str to str, optional
        How to divide it: see `anatune.network.compiling.targets.ranks.divide_module`; by default the module's
        ``tp_plan``.
    link_bytes_per_s : float, optional
        Bytes per second that a device sends to the others.
    fused : bool
        Whether GPU kernels of products and convolutions compute the steps behind them. Those that PyTorch calls do not,
        but for the bias of a product: False predicts its division, in which Inductor joins the steps to kernels.
    progress : callable, optional
        Called with (predictions made, predictions to make).

    Raises
    ------
    SpaceError
        The matrix units of a GPU do not multiply numbers of the precision, `threads` is out of range, or several sizes
        vary.
    WorkloadError, BuildError, UnknownNameError, MissingDependencyError
        As `anatune.compile`.
    """
    from anatune.network.compiling.sizes.varying import environments
    from anatune.network.compiling.targets.planned import check_sizes, plan_model
    from anatune.network.relax.frontends import import_model

    if link_bytes_per_s is not None and not 0 < link_bytes_per_s < math.inf:
        raise SpaceError(f"compare: link_bytes_per_s is {link_bytes_per_s}, expected bytes per second, such as 450e9")
    devices = [hardware(one) for one in ([hw] if isinstance(hw, str) else hw)]
    names = [device.name for device in devices]
    if not names or len(set(names)) < len(names):
        raise SpaceError(f"compare: hw is {', '.join(names) or 'empty'}, expected devices, each of them once")
    exchange: tuple[OperatorSummary, ...] = ()
    if ranks != 1:
        from anatune.network.compiling.targets.ranks import divide_module

        model, sent = divide_module(model, example_inputs, ranks, rank_plan, dynamic_shapes, sizes)
        time_s = None if link_bytes_per_s is None else sent.num_bytes / link_bytes_per_s
        exchange = (OperatorSummary(f"{sent.num_bytes} bytes sent to other ranks", sent.number, time_s),)
    source = import_model(model, example_inputs, sizes, dynamic_shapes, state).widen()
    points = _points(source)
    request = CompileRequest(
        threads=threads, precision=precision, accuracy=accuracy, fuses=check_flag("compare: fused", fused)
    )
    has_cpus = any(device.kind == "cpu" for device in devices)
    summaries: list[ModelSummary] = []
    for size_ranges, sized_source in points:
        point_source = sized_source.keep_graphs()  # devices share them
        graph = point_source.graph(environments(point_source.ranges, point_source.state)[0])
        for device in devices:
            if progress is not None:
                progress(len(summaries), len(points) * len(devices))
            target = _target_of(device, request, graph, beside_cpus=has_cpus)
            check_sizes(point_source, target)
            summary = target.describe(plan_model(target, graph, point_source))
            rows = (*summary.rows, *exchange)
            summaries.append(msgspec.structs.replace(summary, ranges={**summary.ranges, **size_ranges}, rows=rows))
    return summaries


def _target_of(
    device: HardwareSpec, request: CompileRequest, graph: Graph, *, beside_cpus: bool
) -> TritonTarget | CpuTarget:
    """Return the target that predicts a model on a device, in the number format that the device has."""
    precision = request.precision
    if device.kind == "gpu":
        from anatune.network.compiling.targets.triton import TritonTarget

        if beside_cpus:
            is_wide = precision is None and request.accuracy == STANDARD and precision_of(graph) == WIDE
            request = msgspec.structs.replace(request, threads=None, precision=HALVES[1] if is_wide else precision)
        return TritonTarget(device, request)
    from anatune.network.compiling.targets.cpu import CpuTarget, has_precision

    if precision not in (None, WIDE, *HALVES, FP8):
        raise SpaceError(f"compare: precision is {precision}, expected {WIDE}, {', '.join(HALVES)} or {FP8}")
    if precision is not None and not has_precision(device, precision):
        request = msgspec.structs.replace(request, precision=WIDE)
    return CpuTarget(device, request, is_present=False)


def _points(source: ImportedModel) -> list[tuple[dict[str, RangeSummary], ImportedModel]]:
    """Return each value of the size that varies with the model at it; the model alone if no size varies."""
    from anatune.network.compiling.sizes.varying import varying_ranges
    from anatune.network.relax.ranges import name_of

    counts = {pair.symbol for pair in source.state}
    vary = {symbol: ends for symbol, ends in varying_ranges(source.ranges).items() if symbol not in counts}
    if not vary:
        return [({}, source)]
    if len(vary) > 1:
        raise SpaceError(
            f"compare: sizes {', '.join(map(name_of, vary))} of {source.name} vary, expected one at most; give values "
            "of the others (sizes, --size)"
        )
    ((symbol, (least, most)),) = vary.items()
    powers = itertools.takewhile(lambda power: power < most, (1 << bits for bits in itertools.count()))
    values = sorted({least, *(power for power in powers if power > least), most})
    return [
        (
            {name_of(symbol): RangeSummary(least, most, value)},
            replace(source, ranges={**source.ranges, symbol: (value, value)}),
        )
        for value in values
    ]
