"""Which faults are mutants: barriers that are left out order nothing, all others are missed."""

import pytest

pytest.importorskip("tvm")
import anatune
from anatune import batch_matmul, matmul
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.core.schedule import Schedule
from anatune.errors import MissingDependencyError, RunError
from anatune.measure.emulate.emulator import compiler
from anatune.measure.emulate.verify import check_kernel
from anatune.measure.run.correctness import compute_expected, random_inputs
from bench.gpu import verify
from bench.gpu.mutants import mutants, spare_barriers

try:
    compiler()
except MissingDependencyError as error:
    pytest.skip(str(error), allow_module_level=True)

HALF = {"m": (1, 8, 1, 16), "n": (1, 1, 8, 8)}
CASES = {
    "pipelined through registers": (
        matmul(31, 44, 68, dtype="int8"),
        "pipelined",
        {"i": (3, 2, 1, 2, 3), "j": (2, 1, 4, 3, 2), "k": (2, 2, 17)},
        {"stages": 2, "pad": 16},
        {2},
    ),
    "thin, own sums": (
        batch_matmul(12, 1, 64, 64),
        "thin",
        {"n": (8, 4, 2, 1), "k": (16, 1, 4, 1)},
        {"split": 16},
        {1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_spare_barriers_order_nothing(name):
    workload, template, tiles, options, spare = CASES[name]
    vector = {} if template == "thin" else {"A": 1, "B": 1}
    schedule = Schedule(workload, anatune.hardware("rtx3090"), template, tiles, 0, vector, options).check()
    assert spare_barriers(schedule) == spare
    kernel, inputs = cuda_kernel(schedule), random_inputs(workload)
    want = compute_expected(workload, inputs)
    found = {}
    for what, mutant in mutants(kernel):
        if what.startswith("barrier"):
            try:
                found[int(what.split()[1])] = check_kernel(workload, mutant, inputs, want).ok
            except RunError:
                found[int(what.split()[1])] = False
    assert {number for number, is_right in found.items() if is_right} == spare
    assert not any(what == f"barrier {number} removed" for number in spare for what, _ in mutants(kernel, spare))


def test_a_mutant_that_is_missed_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["verify", "--only", "elementwise", "--points", "1", "--mutants", "1"])
    assert verify.main() == 0
    assert "PASS: 0 points wrong, 0 mutants not caught" in capsys.readouterr().out
    monkeypatch.setattr(verify, "mutants", lambda kernel, spare: [("nothing 1 changed", kernel)])
    assert verify.main() == 1
    shown = capsys.readouterr().out
    assert "not caught: nothing 1 changed" in shown
    assert "mutants, nothing changed: 0 of 1 caught" in shown
    assert "FAIL: 0 points wrong, 1 mutants not caught" in shown
