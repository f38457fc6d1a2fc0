"""What is told while functions are compiled; the next time their seconds are known."""

import ast
import os
import subprocess
import sys

import msgspec

from anatune.numerics import _compiling

_CODE = """
from anatune.numerics._compiling import report_compilation
from anatune.templates.cuda.times.shared_memory import conflict_table

told = []
with report_compilation(lambda *at: told.append(at)):
    conflict_table()
print(told)
"""


def test_functions_are_told_and_their_seconds_kept(tmp_path):
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run():
        done = subprocess.run(
            [sys.executable, "-c", _CODE], capture_output=True, text=True, env=variables, timeout=120, check=True
        )
        return ast.literal_eval(done.stdout)

    told = run()
    assert told[0][0] == 0
    shares = [share for _, _, share in told if share is not None]
    assert shares == sorted(shares)
    assert told[-1][2] is None
    kept = msgspec.json.decode((tmp_path / "compile-seconds.json").read_bytes(), type=dict[str, float])
    assert "anatune.templates.cuda.times.shared_memory.fill_conflicts" in kept
    assert all(seconds > 0 for seconds in kept.values())
    assert run() == []  # the code is there
    for path in tmp_path.glob("numerics-*/*"):
        path.unlink()
    assert {total for _, total, share in run() if share is not None} == {len(kept)}


def test_the_clock_counts_the_seconds_of_compiling_alone(monkeypatch):
    now = iter((1.0, 2.0, 4.0, 10.0, 11.0))
    monkeypatch.setattr(_compiling.time, "perf_counter", lambda: next(now))
    clock = _compiling.CompilationClock()
    for share in (0.0, 0.5, None, 0.0, None):
        clock(0, 2, share)
    assert clock.seconds == 4.0  # from 1 to 4, and from 10 to 11
