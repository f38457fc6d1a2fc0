"""Thirty faults, one at a time in a copy of the tree: which tests notice them?

    python -m tests.seeded_faults WORK_FOLDER [--tree TREE] [--only NAME ...] [--output FILE]

A fault is a change of one piece of text that occurs exactly once in the package, wherever modules lie. For each the
test files whose names fit are run first, then its floor's unit tests, then the others, until one fails or the budget
is spent. The result is a line of JSON a fault. Faults are chosen to be small (a bound that is off by one, a case left
out): what any test of the neighbourhood would notice says nothing.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """One change: the floor it is on, what test files are called that are tried first, the texts."""

    name: str
    floor: str
    likely: tuple[str, ...]
    old: str
    new: str


FAULTS = (
    # -- core
    Fault("overlapping_results", "core", ("core/workload/test_nest", "workload_properties"),
          "is_mixed |= extent > 1 and coefficient < covered", "is_mixed |= extent > 1 and coefficient < covered - 1"),
    Fault("count_of_tilings", "core", ("factor", "space"),
          "math.comb(exponent + parts - 1, parts - 1)", "math.comb(exponent + parts - 1, parts)"),
    Fault("same_padding", "core", ("convolution", "pooling"),
          "tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)",
          "tuple(total - total // 2 for total in totals), tuple(total // 2 for total in totals)"),
    Fault("doubtful_peak", "core", ("hardware",),
          "if abs(stated / product - 1.0) > 0.02:", "if stated / product - 1.0 > 0.02:"),
    # -- templates: times
    Fault("cache_that_just_fits", "templates", ("cpu/times/test_point", "predictions", "cpu/model"),
          "traffic[i] < 0.0 and capacity[i] > size[i]", "traffic[i] < 0.0 and capacity[i] >= size[i]"),
    Fault("tail_of_waves", "templates", ("cuda/times/test_time", "predictions"),
          "tail = max(tail * TAIL_OVERLAP, wave_cycles", "tail = max(tail, wave_cycles"),
    Fault("registers_of_partitions", "templates", ("occupancy",),
          "gpu.registers_sm // gpu.sub_partitions // registers_warp * gpu.sub_partitions // warps",
          "gpu.registers_sm // registers_warp // warps"),
    Fault("ring_fills_while_others_compute", "templates", ("gpu/times/test_waves",),
          "wave -= start * (1.0 - 1.0 / resident)", "wave -= start / resident"),
    Fault("pairs_beside_the_vectors", "templates", ("cpu_ranking", "ranking"),
          "elif pairs[depth + 1] > 1:", "elif pairs[depth + 1] > 0:"),
    # -- model
    Fault("corrected_order", "model", ("correct",),
          'np.argsort(self.times(ranking.points)[0], kind="stable")[:top_k]', "np.arange(len(ranking.points))[:top_k]"),
    Fault("bounds_cut_too_much", "model", ("ranking",),
          "slab_bounds <= self._best.limit_s)", "slab_bounds <= 0.97 * self._best.limit_s)"),
    Fault("support_outside_training", "model", ("residual", "correct"),
          "self.options.share * outputs.mean(axis=0) * support", "self.share_ * outputs.mean(axis=0)"),
    Fault("share_kept", "model", ("subset",),
          "return math.ceil(float(keep) * num_legal)", "return math.floor(float(keep) * num_legal) or 1"),
    # -- codegen
    Fault("dilated_taps", "codegen", ("padding", "cpu/test_lower"),
          "-((low - skip.size) // skip.dilation)", "((skip.size - low) // skip.dilation)"),
    Fault("guard_below_zero", "codegen", ("emulate/test_verify", "fetch"),
          'conditions.append(f"0 <= {index}")', "pass"),
    Fault("other_minors", "codegen", ("requirements", "export_cuda"),
          "other_minors=arch[-1].isdigit()", "other_minors=True"),
    # -- measure
    Fault("reference_of_a_sample", "measure", ("timing",),
          " bases.append((before + after) / 2)", " bases.append(before)"),
    Fault("allowed_error", "measure", ("correctness",),
          "_SUM_FACTOR = 4.0", "_SUM_FACTOR = 40.0"),
    Fault("changed_operand_stays", "measure", ("cuda/test_measurer", "cuda/test_driver", "runner"),
          "                self._restore(name)\n", ""),
    Fault("siblings_build", "measure", ("cores",),
          "tuple(core[0] for core in runner)", "tuple(cpu for core in runner for cpu in core)"),
    # -- search
    Fault("droplet_batches_failed", "search", ("droplet",),
          "failed = 0 if good else failed + (MISSING not in answers)",
          "failed = failed if good else failed + (MISSING not in answers)"),
    Fault("far_neighbours_count", "search", ("evolution",), "weights = 1.0 / near", "weights = near"),
    Fault("failures_attract", "search", ("learned",),
          "pool.penalty += self._closeness(", "pool.penalty -= self._closeness("),
    # -- records and tuning
    Fault("wrong_results_win", "records", ("choice",),
          "if not own[-1].ok}", "if not any(trial.ok for trial in own)}"),
    Fault("pages_of_trials", "records", ("record_store", "unit/records/test_store"),
          "page.where(trials.c.id > last)", "page.where(trials.c.id >= last)"),
    Fault("plan_is_compared", "tuning", ("session",),
          "if plan is not None and plan not in chosen and plan.measurement.time_s is not None:", "if False:"),
    # -- report, cli
    Fault("rounded_ratio", "report", ("units",), "if value >= 99.95:", "if value >= 100.0:"),
    Fault("reader_went_away", "cli", ("test_process.py",), "return 141", "return 0"),
    # -- adapters
    Fault("default_of_the_caller", "adapters", ("triton",), "kept[-1] = 0", "kept.append(0)"),
)  # fmt: skip


def tampered(tree: Path, fault: Fault) -> None:
    """Put a fault into the package of a tree.

    Raises
    ------
    SystemExit
        The text does not occur exactly once.
    """
    texts = {path: path.read_text() for path in (tree / "anatune").rglob("*.py")}
    found = [path for path, text in texts.items() for _ in range(text.count(fault.old))]
    if len(found) != 1:
        raise SystemExit(f"{fault.name}: {fault.old!r} occurs {len(found)} times in {tree}/anatune, expected once")
    found[0].write_text(texts[found[0]].replace(fault.old, fault.new))


def rounds(tree: Path, fault: Fault) -> Iterator[list[str]]:
    """Yield the lists of test files to run: likely ones, the floor's own, the others folder by folder."""
    files = sorted(str(path.relative_to(tree)) for path in (tree / "tests").rglob("test_*.py"))
    own = [file for file in files if file.startswith(f"tests/unit/{fault.floor}/")]
    likely = [file for file in files for word in fault.likely if word in file.removeprefix("tests/")]
    likely.sort(key=lambda file: (file not in own, min(place for place, w in enumerate(fault.likely) if w in file)))
    others = sorted(files, key=lambda file: (not file.startswith("tests/property"), not file.startswith("tests/unit")))
    seen: set[str] = set()
    by_folder = [
        list(group) for _, group in itertools.groupby(others, lambda file: file.split("/")[1:3][: 1 + ("unit" in file)])
    ]
    for wanted in (likely, own, *by_folder):
        new = [file for file in dict.fromkeys(wanted) if file not in seen]
        seen.update(new)
        if new:
            yield new


def caught_by(tree: Path, fault: Fault, budget_s: float) -> tuple[str | None, int, float]:
    """Return the test that fails first (None where none does), in which round, and CPU seconds.

    No further round begins after `budget_s` CPU seconds, and none takes longer than twice that.
    """
    number, spent_s = 0, 0.0
    for number, files in enumerate(rounds(tree, fault), 1):
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        words += ["-m", "slow or not slow", *files]
        environment = os.environ | {"PYTHONPATH": str(tree), "CI": "true"}
        before_s = cpu_s()
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_CPU, (int(2 * budget_s), int(2 * budget_s)))
        try:
            done = subprocess.run(
                words, cwd=tree, env=environment, capture_output=True, text=True, check=False, preexec_fn=limit,
                timeout=20 * budget_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            shown = (late.stdout or b"").decode(errors="replace")
            return f"not finished after {late.timeout:g} s: {shown[-200:]}", number, spent_s + cpu_s() - before_s
        spent_s += cpu_s() - before_s
        if done.returncode not in (0, 1, 2, -signal.SIGKILL, -signal.SIGXCPU):
            raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        if done.returncode in (1, 2):
            match = re.search(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE)
            return (match.group(1)[:200] if match else done.stdout[-300:]), number, spent_s
        if spent_s > budget_s:
            break
    return None, number, spent_s


def cpu_s() -> float:
    """Return CPU seconds of the processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where copies are made")
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--only", nargs="*", help="names of faults")
    parser.add_argument("--output", type=Path, help="lines of JSON; faults that it has are left out")
    parser.add_argument("--budget", type=float, default=240.0, help="CPU seconds a fault, after which it is uncaught")
    parser.add_argument("--check", action="store_true", help="only say whether every text occurs once")
    given = parser.parse_args()
    known = {json.loads(line)["name"] for line in given.output.open()} if given.output and given.output.exists() else ()
    chosen = [one for one in FAULTS if (not given.only or one.name in given.only) and one.name not in known]
    missed = 0
    for fault in chosen:
        copy = given.folder / "tree"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(given.tree, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache"))
        tampered(copy, fault)
        if given.check:
            continue
        test, number, spent_s = caught_by(copy, fault, given.budget)
        missed += test is None
        row = {"name": fault.name, "floor": fault.floor, "caught_by": test, "round": number, "cpu_s": round(spent_s, 1)}
        line = json.dumps(row)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if given.output:
            with given.output.open("a") as stream:
                stream.write(line + "\n")
    sys.stdout.write(f"{len(chosen)} faults, {missed} uncaught\n")


if __name__ == "__main__":
    main()
