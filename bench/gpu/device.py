"""anatune on a GPU against cuBLAS, cuDNN and Triton: layers of networks, products of many sizes, calls of some minutes.

    python -m bench.gpu.device --state FOLDER [--stage calibrate,plan,tune16,tune64,anchors,triton]
                               [--layers M*,R5,yolo9000] [--seconds 440] [--hw h200] [--kernels FOLDER]
    python -m bench.gpu.device --stage triton --build FOLDER --hw h100_sxm  (no GPU needed)
    python -m bench.gpu.device --dry-run --state FOLDER                     (no GPU needed; numbers mean nothing)

Each stage goes on where the last call stopped; FOLDER holds state.json, spec.toml, records.sqlite, table.txt,
results.json, triton.json and ratios.png, all of which are to be carried to the next call. How the machine, its
packages and the order of calls are handled: docs/bench/gpu.device.md.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gpu.layers import DTYPES, LAYERS, TENSOR_LAYERS, is_asked, workload_of
from bench.gpu.state import BEST, CHOICES, LayerState, State, entry_name, is_right
from bench.gpu.timing import interleave
from bench.layers import Layer, choose

if TYPE_CHECKING:
    from anatune.core.hardware.spec import GpuSpec
    from bench.gpu.system import System

__all__ = ["STAGES", "Run", "main"]

STAGES = ("calibrate", "plan", "tune16", "tune64", "anchors", "triton")
_LEAST_S = 5.0
"""A layer is not begun with less time left."""
_HANGS_S, _SLOW_HANGS_S = 150.0, 400.0
"""A layer whose timing takes longer ends the process: a kernel hangs; float32 ones wait for Triton, which unrolls its
products into scalar ones. Assumed; the wide product may take a minute."""
_MOST_ATTEMPTS = 2
"""A layer that ended the process so often is left out."""


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

    def plan(self, layers: Sequence[Layer] | None = None, dtypes: Sequence[str] = ("float32",), count: int = 1) -> None:
        """Plan the layers that have no plan yet, their `count` first choices: nothing is measured."""

        def one(entry: LayerState, layer: Layer) -> None:
            started = self._clock()
            chosen = self._system.choices(layer, entry.dtype, self._spec(), count)
            for name, (schedule, predicted_s) in zip(CHOICES, chosen, strict=False):
                entry.schedules[name], entry.predicted_s[name] = schedule, predicted_s
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
            entry.attempts += 1
            self._save()  # should it end the process
            limit_s = _SLOW_HANGS_S if entry.dtype == "float32" else _HANGS_S
            faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__ or sys.stderr)
            try:
                self._time(entry, layer)
            except FaultedError as error:
                failed = entry.schedules.pop(error.method.partition(":")[2], None)
                entry.schedules = {n: s for n, s in entry.schedules.items() if failed is None or s.key != failed.key}
                entry.notes.append(f"{layer.name} {entry.dtype} {error}")
                entry.attempts = 0  # what did it is left out
                self._save()
                raise SystemExit(
                    f"bench.gpu.device: {entry.notes[-1]}; it is left out from now on, call again to go on"
                ) from None
            finally:
                faulthandler.cancel_dump_traceback_later()
            entry.attempts = 0

        def is_missing(entry: LayerState) -> bool:
            if entry.attempts >= _MOST_ATTEMPTS:
                say(f"anchors {entry.layer} {entry.dtype}: ended the process {entry.attempts} times, left out")
                return False
            known = {*entry.samples.get("flush", {}), *entry.errors}
            return not known or any(f"anatune:{name}" not in known for name in entry.schedules)

        self._each("anchors", one, is_missing, layers, dtypes)

    def _time(self, entry: LayerState, layer: Layer) -> None:
        """Check and time a layer's kernels and its rivals in turns."""
        notes: list[str] = []
        chosen = {name: schedule for name, schedule in entry.schedules.items() if name != BEST}
        names: dict[str, str] = {}
        for name, schedule in chosen.items():
            names.setdefault(schedule.key, name)
        bench = self._system.bench(layer, entry.dtype, {name: chosen[name] for name in names.values()}, notes)
        try:
            found = interleave(bench.methods, self._system.clock, self._options.rounds) if bench.methods else {}
        finally:
            bench.close()
        entry.samples, entry.kernels = found, bench.kernels
        entry.errors = {name: error if math.isfinite(error) else None for name, error in bench.errors.items()}
        best = _fastest(entry)
        if best is not None:
            chosen[BEST] = entry.schedules[BEST] = entry.schedules[best]
        for known in (*found.values(), entry.errors):  # the same schedule has the same samples
            for name, schedule in chosen.items():
                first = f"anatune:{names[schedule.key]}"
                if first in known:
                    known[f"anatune:{name}"] = known[first]
        entry.notes = list(dict.fromkeys([*entry.notes, *notes]))
        say(f"anchors {layer.name} {entry.dtype}: {', '.join(bench.methods)}")

    def triton(self) -> None:
        """Check and time the first choices of the template triton beside the libraries, predicted times beside real."""
        layers = choose(self._options.layers or TENSOR_LAYERS, LAYERS)
        for dtype in self._options.dtypes.split(","):
            self.plan(layers, (dtype,), len(CHOICES))
            self.anchors(layers, (dtype,))

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
                if not is_asked(layer, dtype):
                    continue
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
            workload = workload_of(layer, dtype)
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
        from bench.gpu.choices import choices_of, summaries
        from bench.gpu.tables import as_json, draw, print_tables

        known = {
            "calibrate": self.calibrate,
            "plan": self.plan,
            "tune16": lambda: self.tune(16),
            "tune64": lambda: self.tune(64),
            "anchors": self.anchors,
            "triton": self.triton,
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
        if choices := choices_of(self.state):
            told = {"device": self.state.device, "by_dtype": summaries(choices), "choices": choices}
            write_json(self._folder / "triton.json", {**told, "environment": content["environment"]})
        problem = draw(self.state, self._folder / "ratios.png")
        if problem:
            say(problem)
        if self.is_cut_off:
            print("not all was done: call again with the same --state to go on")


def _fastest(entry: LayerState) -> str | None:
    """Return which of several first choices is fastest, with the L2 flushed, of those whose result is right."""
    timed = entry.samples.get("flush", {})
    names = [name for name in CHOICES if timed.get(f"anatune:{name}") and is_right(entry, f"anatune:{name}")]
    if CHOICES[1] not in entry.schedules or not names:
        return None
    return min(names, key=lambda name: statistics.median(timed[f"anatune:{name}"]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--state", type=Path, default=Path("gpu_state"), metavar="FOLDER", help="where calls go on")
    parser.add_argument("--stage", default="calibrate,plan,tune16,tune64,anchors", help=f"some of {', '.join(STAGES)}")
    parser.add_argument("--layers", help="comma-separated names, patterns (R*) and groups (bert, resnet50, yolo9000)")
    parser.add_argument("--seconds", type=float, default=440.0, help="begin nothing after so long")
    parser.add_argument("--minutes", type=float, default=0.5, help="most time for sampling in the stage calibrate")
    parser.add_argument("--hw", help="plan with this spec; by default the calibrated one, else the detected one")
    parser.add_argument("--dtypes", default=",".join(DTYPES[1:]), help="of the stage triton")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each method")
    parser.add_argument("--seed", type=int, default=0, help="of operands and tuning")
    parser.add_argument("--index", type=int, default=0, help="which GPU")
    parser.add_argument("--no-rivals", action="store_true", help="without PyTorch and Triton")
    parser.add_argument("--again", action="store_true", help="do what is done already once more")
    parser.add_argument("--kernels", type=Path, metavar="FOLDER", help="kernels built elsewhere: no compiler is needed")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="build such kernels here (no GPU) and stop")
    parser.add_argument("--trials", type=int, default=64, help="float32 kernels of a layer with --build")
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
    for dtype in options.dtypes.split(","):
        if dtype not in DTYPES[1:]:
            raise SystemExit(f"--dtypes: {dtype!r} is unknown, expected some of {', '.join(DTYPES[1:])}")
    import anatune
    from anatune.errors import AnatuneError

    try:
        if options.build is not None:
            from bench.gpu.build import build_layers

            wanted = []
            if set(names) - {"triton"}:
                wanted = [(layer, "float32", options.trials) for layer in choose(options.layers, LAYERS)]
            if "triton" in names:
                layers = choose(options.layers or TENSOR_LAYERS, LAYERS)
                pairs = [(layer, d) for d in options.dtypes.split(",") for layer in layers if is_asked(layer, d)]
                wanted += [(*pair, len(CHOICES)) for pair in pairs]
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
