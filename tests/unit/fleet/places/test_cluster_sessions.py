"""Places of clusters and executors; the workers pretend, the session, its strategy and its records are real."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

pytest.importorskip("distributed", reason="pip install '.[cluster]'")

import anatune
from anatune.core.trial import Outcome
from anatune.errors import DeviceError, SpaceError
from anatune.fleet.cluster.security import connect
from anatune.fleet.places.cluster import ClusterPlace, ExecutorPlace
from anatune.network.compiling.request import CompileRequest, MeasuringOptions
from anatune.network.compiling.tuning import tune_kernels
from anatune.records.store import RecordStore
from anatune.tuning.places.local import place_of
from anatune.tuning.settings import TuningSettings
from tests.unit.fleet.cluster.pretended import HARDWARE
from tests.unit.fleet.cluster.test_worker import process
from tests.unit.network.compiling.test_tuning import planned
from tests.wording import refuses

H200 = anatune.hardware("h200")
XEON = anatune.hardware("xeon_gold_6230r")


@pytest.fixture(scope="module")
def address():
    with process("scheduler", 0) as (_, address), process("workers", address, 2):
        yield address


@pytest.fixture(scope="module")
def client(address):
    with connect(address) as one:
        yield one


def test_an_address_a_client_and_an_executor_are_places(address, client):
    with ThreadPoolExecutor(1) as executor:
        for cluster, kind in ((address, ClusterPlace), (client, ClusterPlace), (executor, ExecutorPlace)):
            place = place_of(TuningSettings(cluster=cluster))
            assert type(place) is kind
            place.close()
    assert client.status == "running"  # a caller's own stays open
    with refuses(SpaceError):
        place_of(TuningSettings(cluster=7))
    with pytest.raises(DeviceError):
        place_of(TuningSettings(cluster="127.0.0.1:1"))


def test_the_devices_of_a_place_are_those_of_its_workers(client, monkeypatch):
    place = ClusterPlace(client, owns_client=False, wait_s=0.0)
    assert place.hardware("host") == HARDWARE
    assert place.hardware("h200") == H200
    assert place.check(HARDWARE, {}, built=False) is HARDWARE
    with refuses(DeviceError):
        place.check(XEON, {}, built=False)
    with refuses(DeviceError):
        place.hardware("host_gpu")
    assert place.threads(HARDWARE, 1) == 1
    with refuses(SpaceError):
        place.threads(HARDWARE, 1000)


def test_a_session_on_a_cluster_records_who_measured(client, tmp_path):
    path = tmp_path / "records.sqlite"
    result = anatune.tune(anatune.matmul(48, 64, 36), "host", trials=12, threads=1, cluster=client, records=path)
    assert result.hardware == HARDWARE
    assert len(result.trials) == 12
    assert {trial.measurement.worker for trial in result.trials} == {"w0", "w1"}
    assert sum(one.trials for one in result.workers) == 12
    with RecordStore(path) as store:
        recorded = [record.trial for record in store.trials()]
    assert [one.measurement.worker for one in recorded[:12]] == [one.measurement.worker for one in result.trials]
    again = anatune.tune(
        anatune.matmul(48, 64, 36), "host", trials=15, threads=1, cluster=client, records=path, resume=True
    )
    assert again.num_resumed == 12
    assert len(again.trials) == 15


def test_a_models_kernels_are_tuned_on_a_cluster(client, tmp_path):
    hardware = msgspec.structs.replace(HARDWARE, name="xeon_8124m")
    path = tmp_path / "records.sqlite"
    tune_kernels(
        planned(), hardware, 1, CompileRequest(measuring=MeasuringOptions(trials=8, records=path, cluster=client))
    )
    with RecordStore(path) as store:
        trials = [record.trial for record in store.trials()]
    measured = [trial for trial in trials if trial.source != "compare"]
    assert len(measured) == 8
    assert all(trial.measurement.worker in ("w0", "w1") for trial in trials)


def test_an_executor_builds_and_this_machine_measures():
    pytest.importorskip("tvm", reason="pip install '.[tvm]'")
    with ThreadPoolExecutor(1) as executor:
        result = anatune.tune(anatune.matmul(32, 32, 32), "host", trials=3, threads=1, cluster=executor)
        assert executor.submit(int, "7").result() == 7  # it is the caller's
    assert [trial.measurement.outcome for trial in result.trials] == [Outcome.OK] * 3
    assert {trial.measurement.worker for trial in result.trials} == {""}
    assert result.workers == ()
