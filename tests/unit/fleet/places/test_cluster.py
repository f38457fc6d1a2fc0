"""Devices of a cluster, before the first trial."""

import pytest

import anatune
from anatune.errors import DeviceError, SpaceError
from anatune.fleet.cluster.fleet import SeenWorker, Snapshot
from anatune.fleet.cluster.messages import WorkerDescription
from anatune.fleet.places.cluster import ClusterPlace, cluster_place
from anatune.records.environment import environment
from anatune.tuning.settings import TuningSettings
from tests.wording import refuses

pytest.importorskip("distributed", reason="pip install '.[cluster]'")


class Workers:
    """What a fleet sees."""

    def __init__(self, *devices):
        described = [WorkerDescription(f"w{n}", "code", environment(), 2, device) for n, device in enumerate(devices)]
        self.snapshot = Snapshot({one.name: SeenWorker(one) for one in described})
        self.looks = 0

    def look(self):
        self.looks += 1
        return self.snapshot


def place_with(*devices):
    place, workers = ClusterPlace(object(), owns_client=False, wait_s=0.6), Workers(*devices)
    place._fleet = lambda session: workers
    return place, workers


def test_the_devices_are_those_of_the_workers():
    xeon, rtx = anatune.hardware("xeon_gold_6230r"), anatune.hardware("rtx3090")
    place, _ = place_with(xeon, rtx, None)
    assert place.hardware("host") == xeon
    assert place.hardware("host_gpu") == rtx
    assert place.hardware("rtx3090") == rtx
    assert place.check(rtx, {}, built=False) == rtx
    with refuses(DeviceError):
        place.check(anatune.hardware("a100"), {}, built=False)


def test_a_word_that_means_several_devices_is_refused():
    xeon, ryzen, gpus = anatune.hardware("xeon_gold_6230r"), anatune.hardware("ryzen_7950x"), ("rtx3090", "a100")
    place, _ = place_with(xeon, ryzen, xeon, *map(anatune.hardware, gpus))
    with refuses(DeviceError):
        place.hardware("host")
    with refuses(DeviceError):
        place.hardware("host_gpu")
    assert place.check(xeon, {}, built=False) == xeon


def test_one_waits_once_for_a_device_and_says_so(caplog):
    place, workers = place_with(anatune.hardware("xeon_gold_6230r"), None)
    with refuses(DeviceError):
        place.hardware("host_gpu")
    assert caplog.messages == ["the cluster has 2 workers and no GPU; waiting 0.6 s for one"]
    with refuses(DeviceError):
        place.check(anatune.hardware("rtx3090"), {}, built=False)
    before = workers.looks
    assert place.threads(anatune.hardware("rtx3090"), None) == 1
    assert workers.looks == before + 1
    assert len(caplog.messages) == 1


def test_nobody_is_there(caplog):
    place, _ = place_with()
    with refuses(DeviceError):
        place.hardware("host")
    assert caplog.messages == ["the cluster has no worker; waiting 0.6 s for one"]


@pytest.mark.parametrize("cluster", [7, object(), ["127.0.0.1:8786"]])
def test_what_is_no_cluster(cluster):
    with refuses(SpaceError):
        cluster_place(TuningSettings(cluster=cluster))
