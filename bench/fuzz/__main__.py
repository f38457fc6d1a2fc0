"""Run random cases for a time, shrink what fails, and say what there was.

    python -m bench.fuzz [--kinds onnx torch compile kernels logs] [--seconds 60] [--seed 0] [--jobs 1] [--out DIR]
    python -m bench.fuzz --case KIND:SEED

Exit status 1: something failed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench.fuzz.report import Report
from bench.fuzz.shrink import pattern, shrunk
from bench.fuzz.worker import KINDS, Worker, can_run, kind_module

_SHRUNK_EACH = 3
"""Failures of one kind, state and message that are shrunk; the others are counted."""


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="with commas between them")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others follow")
    parser.add_argument("--cases", type=int, help="end after so many")
    parser.add_argument("--case", metavar="KIND:SEED", help="run one case again and print its program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60.0, metavar="S", help="of one case")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write programs and outcomes.jsonl")
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args(arguments)
    options.kinds = options.kinds.split(",")
    unknown = [kind for kind in options.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"kind {unknown[0]!r}, expected some of {', '.join(KINDS)}")
    return options


def _run_one(case: str, limit_s: float, *, shrink: bool) -> int:
    kind, _, seed = case.partition(":")
    worker = Worker(limit_s)
    program = worker.make(kind, int(seed))
    if hasattr(program, "is_failure"):
        print(program.state, program.why)
        return 2
    print(kind_module(kind).text(program))
    outcome = worker.judge(program)
    print(f"# {case}: {outcome.state} {outcome.why}")
    if outcome.is_failure and shrink:
        smaller = shrunk(outcome, worker.judge, lambda one: worker.call("recorded", one))
        print(f"# shrunk: {smaller.state} {smaller.why}\n{kind_module(kind).text(smaller.program)}")
    worker.close()
    return int(outcome.is_failure)


class _Run:
    """Cases that threads take in turn, each with a worker of its own."""

    def __init__(self, options: argparse.Namespace, report: Report) -> None:
        self._options, self._report = options, report
        kinds = [kind for kind in options.kinds if can_run(kind)]
        count = options.cases or 1 << 60
        self._cases = itertools.islice(
            ((kind, seed) for seed in itertools.count(options.seed) for kind in kinds), count
        )
        self._ends = time.monotonic() + options.seconds
        self._lock = threading.Lock()
        self._shrunk: dict[str, int] = {}

    def work(self) -> None:
        """Run cases until the time is over."""
        worker = Worker(self._options.limit)
        while time.monotonic() < self._ends and not self._report.is_ended:
            with self._lock:
                case = next(self._cases, None)
            if case is None:
                break
            self._one(worker, *case)
        worker.close()

    def _one(self, worker: Worker, kind: str, seed: int) -> None:
        began = time.monotonic()
        program = worker.make(kind, seed)
        outcome = program if hasattr(program, "is_failure") else worker.judge(program)
        seconds = time.monotonic() - began
        if outcome.is_failure and not self._options.no_shrink and hasattr(program, "steps"):
            words = f"{kind} {outcome.state} {pattern(outcome.why)}"
            with self._lock:
                count = self._shrunk[words] = self._shrunk.get(words, 0) + 1
            if count <= _SHRUNK_EACH or outcome.state == "wrong":
                outcome = shrunk(outcome, worker.judge, lambda one: worker.call("recorded", one))
        self._report.add(kind, seed, outcome, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases and print what there was."""
    options = _parsed(arguments)
    os.environ["ANATUNE_CACHE"] = "off"
    if options.case:
        return _run_one(options.case, options.limit, shrink=not options.no_shrink)
    report = Report(options.out)
    run = _Run(options, report)
    threads = [threading.Thread(target=run.work) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.5)
            report.tell()
    except KeyboardInterrupt:
        report.is_ended = True
    for thread in threads:
        thread.join()
    report.finish()
    return int(report.num_failures > 0)


if __name__ == "__main__":
    sys.exit(main())
