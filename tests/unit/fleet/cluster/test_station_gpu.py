"""GPU kernels are built where there is no GPU and measured where there is one; the driver pretends."""

import pytest

pytest.importorskip("tvm", reason="pip install '.[tvm]'")
pytest.importorskip("cuda.bindings", reason="pip install '.[cuda]'")

from anatune.core.trial import Outcome
from anatune.errors import MissingDependencyError
from anatune.fleet.cluster.messages import BuildRequest, MeasureRequest, SessionSetting
from anatune.fleet.cluster.station import Device, Station
from anatune.measure.run.build_processes import Limits
from tests.unit.measure.cuda.test_measurer import H200, WORKLOAD, schedules
from tests.unit.measure.fake_cuda import BACKEND, EMULATED, STATE, seconds_of

LIMITS = Limits(build_s=60.0, run_s=30.0, start_s=120.0)
SESSION = "a" * 32


@pytest.mark.slow
def test_a_cubin_travels_from_who_builds_to_who_has_the_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv(STATE, str(tmp_path))
    entries = {"entries": lambda hardware: EMULATED}
    (schedule,) = schedules()
    builder = Station("builder", None, 1, **entries)
    gpu = Station("gpu", Device(H200, {"device": 0, "backend": BACKEND}), 0, limits=LIMITS, **entries)
    try:
        assert gpu.description.builders == 0
        reference = builder.build(BuildRequest(SESSION, 1, H200, 1, LIMITS))
        built = builder.build(BuildRequest(SESSION, 2, H200, 1, LIMITS, schedule))
        assert built.packed is not None, built
        setting = SessionSetting(SESSION, WORKLOAD, H200, 1, LIMITS, 0, {"template": "cuda", "l2": "flush"})
        gpu.open(setting, reference.packed)
        (measurement,) = gpu.measure(MeasureRequest(SESSION, 3, (schedule,)), [built])
    finally:
        builder.close()
        gpu.close()
    assert measurement.outcome is Outcome.OK, measurement.message
    assert measurement.time_s == pytest.approx(seconds_of(schedule))
    assert gpu.description.peak_flop_per_s == pytest.approx(_flop() / 65e-6)


def test_a_machine_with_a_gpu_and_no_compiler_only_measures(tmp_path, monkeypatch):
    monkeypatch.setenv(STATE, str(tmp_path))
    lacking = EMULATED._replace(reference="tests.unit.fleet.cluster.test_station_gpu:lacks_a_package")
    gpu = Station("gpu", Device(H200, {"device": 0, "backend": BACKEND}), entries=lambda hardware: lacking)
    gpu.close()
    assert gpu.description.builders == 0
    assert gpu.description.device == H200
    assert gpu.description.peak_flop_per_s is None


def lacks_a_package(hardware, folder):
    raise MissingDependencyError("building needs TVM: pip install apache-tvm")


def _flop():
    """Of a launch of the reference kernel: 128 multiply-adds of 512 threads a multiprocessor and round, 256 rounds."""
    return 2 * 128 * 512 * H200.compute.num_sms * 256
