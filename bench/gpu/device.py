"""anatune on a GPU against cuBLAS, cuDNN and Triton: BERT, ResNet-50 and Yolo-9000 layers, calls of some minutes each.

    python -m bench.gpu.device --state FOLDER [--stage calibrate,plan,tune16,tune64,anchors,tensorcore]
                               [--layers M*,R5,yolo9000] [--seconds 440] [--hw h200] [--kernels FOLDER]
    python -m bench.gpu.device --build FOLDER --hw h200 [--layers ...]      (no GPU needed)
    python -m bench.gpu.device --dry-run --state FOLDER                     (no GPU needed; numbers mean nothing)

Each stage goes on where the last call stopped; FOLDER holds state.json, spec.toml, records.sqlite, table.txt,
results.json and ratios.png, all of which are to be carried to the next call. How the machine, its packages and the
order of calls are handled: bench/README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gpu.layers import LAYERS
from bench.gpu.state import OURS, LayerState, State, entry_name
from bench.gpu.timing import interleave
from bench.layers import Layer, choose

if TYPE_CHECKING:
    from anatune.core.hardware.spec import GpuSpec
    from bench.gpu.system import System

__all__ = ["STAGES", "Run", "main"]

STAGES = ("calibrate", "plan", "tune16", "tune64", "anchors", "tensorcore")
_TENSOR_LAYERS = "bert,L0"
_TENSOR_DTYPES = ("bfloat16", "float16", "tfloat32")
_TENSOR_TRIALS = 16
_LEAST_S = 5.0
"""A layer is not begun with less time left."""


def say(text: str) -> None:
    """Show progress on standard error."""
    print(text, file=sys.stderr, flush=True)


class Run:
    """One call: a machine, the state, the time that is left.

    Parameters
    ----------
    system
        The machine.
    options
        Of the command line.
    clock
        Seconds; for tests.
    """

    def __init__(
        self, system: System, options: argparse.Namespace, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._system, self._options, self._clock = system, options, clock
        self._deadline = clock() + options.seconds
        self._folder: Path = options.state
        self.path = self._folder / "state.json"
        self.state = State.open(self.path, system.name, system.arch)
        self.state.environment.update(system.versions())
        self.layers = choose(options.layers, LAYERS)
        self.is_cut_off = False

    # ---- stages ---------------------------------------------------------------------------------------------------

    def calibrate(self) -> None:
        """Measure the device once; its numbers become the spec that is planned with."""
        from anatune.core.hardware.files import spec_to_toml

        if self.state.calibrated and not self._options.again:
            say("calibrate: done before")
            return
        result = self._system.calibrate(minutes=self._options.minutes)
        self.state.numbers, self.state.calibrated = result.numbers, True
        if not self._options.hw:
            self.state.spec = result.spec
        self._save()
        (self._folder / "spec.toml").write_text(spec_to_toml(result.spec))
        from anatune.report.devices import gpu_calibration_lines

        print(*gpu_calibration_lines(result.spec, result.numbers), *result.notes, sep="\n")

    def plan(self, layers: Sequence[Layer] | None = None, dtypes: Sequence[str] = ("float32",)) -> None:
        """Plan the layers that have no plan yet: nothing is measured."""

        def one(entry: LayerState, layer: Layer) -> None:
            started = self._clock()
            entry.schedules["plan"] = self._system.plan(layer, entry.dtype, self._spec())
            entry.plan_s = self._clock() - started
            say(f"plan {layer.name} {entry.dtype}: {entry.plan_s:.2f} s")

        self._each("plan", one, lambda entry: "plan" not in entry.schedules, layers, dtypes)

    def tune(self, trials: int, layers: Sequence[Layer] | None = None, dtypes: Sequence[str] = ("float32",)) -> None:
        """Tune the layers that have fewer trials than that."""
        name = str(trials)

        def one(entry: LayerState, layer: Layer) -> None:
            started = self._clock()
            found = self._system.tune(
                layer, entry.dtype, self._spec(), trials, self._folder / "records.sqlite", self._left_s()
            )
            entry.tune_s += self._clock() - started
            entry.num_trials, entry.num_failed = found.num_trials, found.num_failed
            if found.num_trials < trials and self._left_s() <= 0:
                self.is_cut_off = True  # the next call goes on with these trials
                return
            if found.schedule is None:
                entry.notes.append(f"{layer.name} {entry.dtype}: none of {found.num_trials} trials ran")
            else:
                entry.schedules[name] = found.schedule
            say(
                f"tune {layer.name} {entry.dtype}: {found.num_trials} trials, {found.num_failed} failed, "
                f"{self._clock() - started:.1f} s"
            )

        self._each(f"tune{trials}", one, lambda entry: name not in entry.schedules, layers, dtypes)

    def anchors(self, layers: Sequence[Layer] | None = None, dtypes: Sequence[str] = ("float32",)) -> None:
        """Time what there is beside cuBLAS, cuDNN and Triton."""
        from bench.gpu.system import FaultedError

        def one(entry: LayerState, layer: Layer) -> None:
            notes: list[str] = []
            chosen = {name: entry.schedules[name] for name in OURS if name in entry.schedules}
            names: dict[str, str] = {}
            for name, schedule in chosen.items():
                names.setdefault(schedule.key, name)
            distinct = {name: chosen[name] for name in names.values()}
            try:
                bench = self._system.bench(layer, entry.dtype, distinct, notes)
            except FaultedError as error:
                failed = entry.schedules.pop(error.method.partition(":")[2], None)
                entry.schedules = {n: s for n, s in entry.schedules.items() if failed is None or s.key != failed.key}
                entry.notes.append(f"{layer.name} {entry.dtype} {error}")
                self._save()
                raise SystemExit(
                    f"bench.gpu.device: {entry.notes[-1]}; it is left out from now on, call again to go on"
                ) from None
            try:
                found = interleave(bench.methods, self._system.clock, self._options.rounds) if bench.methods else {}
            finally:
                bench.close()
            for samples in found.values():  # the same schedule has the same samples
                for name, schedule in chosen.items():
                    first = f"anatune:{names[schedule.key]}"
                    if first in samples:
                        samples[f"anatune:{name}"] = samples[first]
            entry.samples, entry.kernels, entry.errors = found, bench.kernels, bench.errors
            entry.notes = list(dict.fromkeys([*entry.notes, *notes]))
            say(f"anchors {layer.name} {entry.dtype}: {', '.join(bench.methods)}")

        def is_missing(entry: LayerState) -> bool:
            timed = entry.samples.get("flush", {})
            return any(f"anatune:{name}" not in timed for name in entry.schedules) or not timed

        self._each("anchors", one, is_missing, layers, dtypes)

    def tensorcore(self) -> None:
        """Plan, tune and time matmuls for matrix units."""
        layers = self.layers if self._options.layers else choose(_TENSOR_LAYERS, LAYERS)
        for dtype in self._options.dtypes.split(","):
            for step in (self.plan, lambda *rest: self.tune(_TENSOR_TRIALS, *rest), self.anchors):
                if not self.is_cut_off:
                    step(layers, (dtype,))

    # ---- what stages share ----------------------------------------------------------------------------------------

    def _each(
        self,
        stage: str,
        one: Callable[[LayerState, Layer], None],
        is_missing: Callable[[LayerState], bool],
        layers: Sequence[Layer] | None,
        dtypes: Sequence[str],
    ) -> None:
        """Do a stage for all layers that lack it while there is time; save after each."""
        from anatune.errors import AnatuneError, DeviceError
        from anatune.measure.cuda.driver import KernelFaultError

        for layer in self.layers if layers is None else layers:
            for dtype in dtypes:
                entry = self._entry(layer, dtype)
                if not (is_missing(entry) or self._options.again):
                    continue
                if self._left_s() < _LEAST_S:
                    self.is_cut_off = True
                    say(f"{stage}: time is up at {layer.name}; call again to go on")
                    return
                try:
                    one(entry, layer)
                except (DeviceError, KernelFaultError):  # nothing more can be done in this process
                    self._save()
                    raise
                except AnatuneError as error:
                    entry.notes.append(f"{layer.name} {dtype} {stage}: {error}")
                    say(entry.notes[-1])
                self._save()

    def _entry(self, layer: Layer, dtype: str) -> LayerState:
        name = entry_name(layer.name, dtype)
        if name not in self.state.layers:
            from bench.gpu.system import operands_dtype

            workload = layer.workload("NCHW", operands_dtype(dtype))
            self.state.layers[name] = LayerState(layer.name, dtype, workload.describe(), workload.flop)
        return self.state.layers[name]

    def _spec(self) -> GpuSpec:
        if self.state.spec is None:
            if self._options.hw:
                import anatune

                found = anatune.hardware(self._options.hw)
                self.state.spec = found  # type: ignore[assignment]
            else:
                self.state.spec = self._system.spec()
        assert self.state.spec is not None
        return self.state.spec

    def _left_s(self) -> float:
        return self._deadline - self._clock()

    def _save(self) -> None:
        self.state.save(self.path)

    def stages(self, names: Sequence[str]) -> None:
        """Do stages in order until the time is up; then print and write what is known."""
        from bench.gpu.tables import as_json, draw, print_tables

        known = {
            "calibrate": self.calibrate,
            "plan": self.plan,
            "tune16": lambda: self.tune(16),
            "tune64": lambda: self.tune(64),
            "anchors": self.anchors,
            "tensorcore": self.tensorcore,
        }
        for name in names:
            if self.is_cut_off:
                break
            known[name]()
        self._save()
        from bench.results import environment, write_json

        print_tables(self.state, self._folder / "table.txt")
        content = as_json(self.state)
        content["environment"] = environment(**self.state.environment)
        write_json(self._folder / "results.json", content)
        problem = draw(self.state, self._folder / "ratios.png")
        if problem:
            say(problem)
        if self.is_cut_off:
            print("not all was done: call again with the same --state to go on")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--state", type=Path, default=Path("gpu_state"), metavar="FOLDER", help="where calls go on")
    parser.add_argument("--stage", default="calibrate,plan,tune16,tune64,anchors", help=f"some of {', '.join(STAGES)}")
    parser.add_argument("--layers", help="comma-separated names, patterns (R*) and groups (bert, resnet50, yolo9000)")
    parser.add_argument("--seconds", type=float, default=440.0, help="begin nothing after so long")
    parser.add_argument("--minutes", type=float, default=0.5, help="most time for sampling in the stage calibrate")
    parser.add_argument("--hw", help="plan with this spec; by default the calibrated one, else the detected one")
    parser.add_argument("--dtypes", default=",".join(_TENSOR_DTYPES), help="of the stage tensorcore")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each method")
    parser.add_argument("--seed", type=int, default=0, help="of operands and tuning")
    parser.add_argument("--index", type=int, default=0, help="which GPU")
    parser.add_argument("--no-rivals", action="store_true", help="without PyTorch and Triton")
    parser.add_argument("--again", action="store_true", help="do what is done already once more")
    parser.add_argument("--kernels", type=Path, metavar="FOLDER", help="kernels built elsewhere: TVM is not needed")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="build such kernels here (no GPU) and stop")
    parser.add_argument("--trials", type=int, default=64, help="kernels of a layer with --build")
    parser.add_argument("--megabytes", type=float, default=48.0, help="most that --build may write")
    parser.add_argument("--dry-run", action="store_true", help="pretend there is a GPU: that of --hw, else an H200")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    names = [name.strip() for name in options.stage.split(",") if name.strip()]
    for name in names:
        if name not in STAGES:
            raise SystemExit(f"--stage: {name!r} is unknown, expected some of {', '.join(STAGES)}")
    from bench.gpu.system import DTYPES

    for dtype in options.dtypes.split(","):
        if dtype not in DTYPES[1:]:
            raise SystemExit(f"--dtypes: {dtype!r} is unknown, expected some of {', '.join(DTYPES[1:])}")
    import anatune
    from anatune.errors import AnatuneError

    try:
        if options.build is not None:
            from bench.gpu.build import build_layers

            wanted = [(layer, "float32", options.trials) for layer in choose(options.layers, LAYERS)]
            if "tensorcore" in names:
                layers = choose(options.layers or _TENSOR_LAYERS, LAYERS)
                wanted += [(layer, d, _TENSOR_TRIALS) for d in options.dtypes.split(",") for layer in layers]
            build_layers(wanted, options.hw or "h200", options.build, options.megabytes, say)
            return
        system: System
        if options.dry_run:
            from bench.gpu.dry_run import DrySystem

            system = DrySystem(anatune.hardware(options.hw or "h200"))  # type: ignore[arg-type]
        else:
            from bench.gpu.system import RealSystem

            system = RealSystem(
                kernels=options.kernels, rivals=not options.no_rivals, seed=options.seed, index=options.index
            )
    except AnatuneError as error:
        raise SystemExit(f"bench.gpu.device: {error}") from None
    try:
        Run(system, options).stages(names)
    except AnatuneError as error:
        raise SystemExit(f"bench.gpu.device: {error}; what was done before is in {options.state}") from None
    finally:
        system.close()


if __name__ == "__main__":
    main()
