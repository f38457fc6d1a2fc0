"""What several cores do at once: the verdict on samples, the steal time, and a parallel loop that gets its threads."""

import os
import subprocess
import sys

import msgspec
import pytest

from anatune.core.hardware.files import hardware, spec_to_toml
from anatune.core.hardware.spec import CpuSpec
from anatune.errors import SpecError
from anatune.measure.cpu.calibration.together import Round, judge_rounds, measure_together, steal_ticks
from anatune.measure.run.cores import physical_cores
from tests.wording import refuses


def rounds(*slower: float, cores: int = 2) -> list[Round]:
    return [Round((1e-3,) * cores, (1e-3 * factor,) * cores) for factor in slower]


@pytest.mark.parametrize(
    ("samples", "steal", "cause", "speedup"),
    [
        (rounds(*[1.01] * 20), 0.0, "independent", 1.98),
        (rounds(*[2.0] * 19, 2.05), 0.0, "shared", 1.0),
        (rounds(*[2.0] * 20, cores=4), 0.0, "shared", 2.0),
        (rounds(*[1.2] * 20, cores=4), 0.0, "clock", 3.33),
        (rounds(*[1.0] * 8, *[1.9] * 12), 0.0, "crowded", 2.0),
        (rounds(*[1.3] * 20), 0.2, "crowded", 1.54),
        (rounds(*[1.0] * 18, 3.0, 3.0), 0.0, "independent", 2.0),
    ],
)
def test_the_verdict(samples, steal, cause, speedup):
    found = judge_rounds(samples, steal)
    assert found.cause == cause
    assert found.speedup == pytest.approx(speedup, abs=0.01)
    assert f"{len(samples[0].alone)} cores together are as fast as {speedup:.2f}" in found.line


def test_steal_time_is_read(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu  100 0 50 800 10 5 5 30 0 0\ncpu0 1 2 3\n")
    assert steal_ticks(tmp_path) == (30, 1000)
    assert steal_ticks(tmp_path / "elsewhere") == (0, 0)


def test_cores_of_this_machine_are_tried_and_errors_are_told():
    found = measure_together(lambda: lambda: sum(range(20_000)), budget_s=0.0, least_rounds=2)
    assert found is None if len(physical_cores()) < 2 else 0.0 < found.speedup <= found.cores

    def broken():
        raise ZeroDivisionError("of the probe")

    if len(physical_cores()) >= 2:
        with pytest.raises(ZeroDivisionError, match="of the probe"):
            measure_together(lambda: broken, budget_s=0.0)


def test_the_spec_keeps_what_was_measured():
    cpu = hardware("ryzen_7950x")
    assert isinstance(cpu, CpuSpec)
    assert cpu.compute.usable_cores == cpu.compute.num_cores == 16
    shared = msgspec.structs.replace(cpu, compute=msgspec.structs.replace(cpu.compute, parallel_speedup=8.5))
    assert "parallel_speedup = 8.5" in spec_to_toml(shared)
    assert [shared.with_threads(n).compute.usable_cores for n in (1, 8, 12)] == [1.0, 8.0, 8.5]
    with refuses(SpecError):
        msgspec.structs.replace(cpu, compute=msgspec.structs.replace(cpu.compute, parallel_speedup=17.0))


def test_a_parallel_loop_gets_the_threads_that_it_asks_for():
    """Left to itself TVM's pool has one thread on a machine of two logical processors."""
    pytest.importorskip("tvm")
    code = (
        "import os\nfrom anatune.codegen.compat import set_pool_threads\n"
        "print(set_pool_threads(2), os.environ['TVM_NUM_THREADS'])"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TVM_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", str(max(2, os.cpu_count() or 1))]
    own = {**environment, "TVM_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]
