"""What cases became: a line of progress, counts by kind, failures once each with a program, the commonest refusals."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from bench.fuzz.program import Outcome
from bench.fuzz.shrink import pattern, signature
from bench.fuzz.worker import kind_module

__all__ = ["Report"]

STATES = ("right", "refused", "skipped", "wrong", "raw", "crash", "hang")


class Report:
    """Outcomes so far; calls may come from several threads.

    Parameters
    ----------
    folder : Path or None
        Where programs and outcomes.jsonl go.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.is_ended, self._began, self._told = False, time.monotonic(), 0.0
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._failures: dict[str, list[tuple[str, int, Outcome]]] = {}
        self._refusals: Counter[str] = Counter()
        self._folder, self._lines = folder, None
        if folder is not None:
            from bench.results import environment

            folder.mkdir(parents=True, exist_ok=True)
            self._lines = (folder / "outcomes.jsonl").open("a")
            self._lines.write(json.dumps({"environment": environment(argv=sys.argv[1:], cpu=_processor())}) + "\n")

    @property
    def num_failures(self) -> int:
        """How many cases failed."""
        return sum(len(cases) for cases in self._failures.values())

    def add(self, kind: str, seed: int, outcome: Outcome, seconds: float) -> None:
        """Count a case; print it where it is the first failure of its sort."""
        with self._lock:
            self._counts[kind, outcome.state] += 1
            if outcome.state in ("refused", "skipped"):
                self._refusals[f"{kind} {outcome.state}: {pattern(outcome.why)}"] += 1
            if outcome.is_failure:
                cases = self._failures.setdefault(f"{kind} {signature(outcome)}", [])
                cases.append((kind, seed, outcome))
                if len(cases) == 1:
                    self._show(kind, seed, outcome)
            if self._lines is not None:
                row = {
                    "kind": kind,
                    "seed": seed,
                    "state": outcome.state,
                    "why": outcome.why,
                    "seconds": round(seconds, 3),
                }
                if outcome.is_failure:
                    row["signature"] = signature(outcome)
                self._lines.write(json.dumps(row) + "\n")
                self._lines.flush()

    def _show(self, kind: str, seed: int, outcome: Outcome) -> None:
        print(f"\n{kind}:{seed} {signature(outcome)}\n    {outcome.why}", flush=True)
        if outcome.program is None:
            return
        text = f"# {kind}:{seed} {outcome.state} {outcome.why!r}\n{kind_module(kind).text(outcome.program)}"
        if self._folder is None:
            print(text, flush=True)
        else:
            (self._folder / f"{outcome.state}_{kind}_{seed}.py").write_text(text)

    def tell(self) -> None:
        """Print a line of progress, now and then."""
        now = time.monotonic()
        if now - self._told < (2 if sys.stderr.isatty() else 60):
            return
        self._told = now
        with self._lock:
            states = Counter()
            for (_, state), count in self._counts.items():
                states[state] += count
        seconds = now - self._began
        words = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
        print(
            f"{seconds:.0f} s, {sum(states.values()) / max(seconds, 1e-9):.1f} cases a second: {words}",
            file=sys.stderr,
            flush=True,
        )

    def finish(self) -> None:
        """Print the summary."""
        kinds = sorted({kind for kind, _ in self._counts})
        seconds = time.monotonic() - self._began
        print(f"\n{'kind':10}" + "".join(f"{state:>10}" for state in STATES))
        for kind in kinds:
            print(f"{kind:10}" + "".join(f"{self._counts[kind, state]:>10}" for state in STATES))
        total = sum(self._counts.values())
        print(f"{total} cases in {seconds:.0f} s, {total / max(seconds, 1e-9):.2f} a second\n")
        for name, cases in sorted(self._failures.items(), key=lambda item: -len(item[1])):
            seeds = ", ".join(str(seed) for _, seed, _ in cases[:8])
            print(f"{len(cases)} x {name} (seeds {seeds})\n      {cases[0][2].why[:240]}")
        print("\nmost common refusals and cases without an answer:" if self._refusals else "")
        for words, count in self._refusals.most_common(12):
            print(f"{count:6} {words}")


def _processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
