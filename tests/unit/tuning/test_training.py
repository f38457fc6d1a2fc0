"""Corrections from records: apart for each device, judged on workloads left out, never fed with failures."""

import numpy as np
import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

import anatune
from anatune import api
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.errors import RecordError
from anatune.model.learned.corrected import CorrectedModel
from anatune.model.learned.corrections import find_correction, load_correction
from anatune.model.learned.residual import ResidualOptions
from anatune.records.store import RecordStore
from anatune.report.devices import family_lines
from anatune.templates import make_model
from anatune.tuning.places.local import LocalPlace
from anatune.tuning.settings import TuningSettings
from anatune.tuning.target import source_of_model, target_of
from anatune.tuning.training import families_of, judge, train
from tests.wording import refuses

OPTIONS = ResidualOptions(num_trees=60, num_leaves=7, num_members=1)
SHAPES = ((256, 256, 256), (512, 128, 256), (128, 512, 256))


def fill(path, devices=("rtx3090",), shapes=SHAPES, slow=0.8, source="random"):
    """Record points whose times are longer than the model's where little is unrolled; every tenth failed."""
    with RecordStore(path) as store:
        for device in devices:
            for shape in shapes:
                model = api.model(anatune.matmul(*shape), anatune.hardware(device))
                points = np.unique(model.space.sample_points(100, 1), axis=0)
                session = store.new_session(model.workload, model.hardware, 1, "random", 0)
                times = model.times(points)[0]
                unroll = points[:, list(model.space.columns).index("unroll")]
                for number, (point, time_s) in enumerate(
                    zip(points, times * np.exp(slow * (unroll < 512)), strict=True)
                ):
                    good = Measurement(Outcome.OK, times_s=(float(time_s),))
                    measured = Measurement(Outcome.RUN_ERROR, "no") if number % 10 == 0 else good
                    trial = Trial(model.space.schedule_of(point), measured, number=number, source=source)
                    store.append(session, trial)
    return path


def families(path):
    with RecordStore(path, read_only=True) as store:
        return families_of(store.iterate())


def test_a_correction_that_helps_is_found_out_and_saved(tmp_path):
    (family,) = families(fill(tmp_path / "r.sqlite"))
    assert (family.name, len(family.measured)) == ("rtx3090_cuda", 3)
    judgement = judge(family, [family], OPTIONS)
    assert judgement.helps
    assert judgement.by_workload.spearman > judgement.plain.spearman
    assert judgement.by_device is None
    assert judgement.num_failed == 3 * 10
    folder = train(family, judgement, "r.sqlite", tmp_path / "out", OPTIONS)
    card = load_correction(folder).card
    assert (card.kernels, card.devices, card.data[0].num_rows) == ("anatune", ("rtx3090",), judgement.num_trials)


def test_a_correction_of_pipelined_kernels_is_used_by_tune_and_carries_over_to_other_operators(tmp_path, monkeypatch):
    workloads = (
        anatune.matmul(256, 128, 64),
        anatune.matmul(64, 256, 128),
        anatune.conv2d(n=1, c=16, h=8, w=8, k=32, r=3, s=3),
    )
    hardware = anatune.hardware("a100_sxm")
    with RecordStore(tmp_path / "r.sqlite") as store:
        for workload in workloads:
            model = make_model(workload, hardware, "pipelined")
            points = np.unique(model.space.sample_points(60, 1), axis=0)
            times = model.times(points)[0] * np.where(points[:, -2] > 1, 0.5, 1.0)  # what the model leaves out
            session = store.new_session(workload, hardware, 1, "random", 0)
            for number, (point, time_s) in enumerate(zip(points, times, strict=True)):
                measured = Measurement(Outcome.OK, times_s=(float(time_s),))
                store.append(session, Trial(model.space.schedule_of(point), measured, number=number))
    (family,) = families(tmp_path / "r.sqlite")
    assert (family.name, len(family.measured)) == ("a100_sxm_pipelined", 3)
    judgement = judge(family, [family], OPTIONS)
    assert judgement.helps
    train(family, judgement, "r.sqlite", tmp_path / "models" / family.name, OPTIONS)
    saved = find_correction(hardware, "pipelined", user_folder=tmp_path / "models")
    monkeypatch.setattr("anatune.model.learned.corrections.user_correction_folder", lambda: tmp_path / "models")
    tuned = target_of(workloads[0], hardware, TuningSettings(), LocalPlace(hardware))  # its default template
    assert source_of_model(tuned, "random", 0).correction == family.name
    plain = target_of(workloads[0], hardware, TuningSettings(template="cuda"), LocalPlace(hardware))
    assert source_of_model(plain, "random", 0).correction is None
    other = make_model(anatune.batch_matmul(2, 64, 64, 32), hardware, "pipelined")
    points = other.space.sample_points(50, 2)
    ratio = CorrectedModel(other, saved.model).times(points)[0] / other.times(points)[0]
    staged = points[:, -2] > 1
    assert np.median(ratio[staged]) < 0.8 * np.median(ratio[~staged])  # what all have in common is left out


def test_where_the_model_is_right_nothing_helps(tmp_path):
    (family,) = families(fill(tmp_path / "r.sqlite", slow=0.0))
    assert not judge(family, [family], OPTIONS).helps


def test_devices_and_foreign_kernels_are_apart_and_devices_are_left_out(tmp_path):
    path = fill(tmp_path / "r.sqlite", ("rtx3090", "a100_sxm"))
    fill(path, ("rtx3090",), SHAPES[:1], source="autotvm")
    found = families(path)
    assert sorted(family.name for family in found) == ["a100_sxm_cuda", "rtx3090_cuda", "rtx3090_cuda_autotvm"]
    judgement = judge(found[0], found, OPTIONS)
    assert judgement.by_device.spearman > judgement.plain_by_device.spearman


def test_a_workload_counts_once_and_layouts_apart(tmp_path):
    """An einsum is the product that it is; the layouts of a convolution are not one workload."""
    path = tmp_path / "r.sqlite"
    product = anatune.einsum("ik,kj->ij", ((64, 64), (64, 128)))
    convolutions = [anatune.conv2d(1, 16, 14, 14, 32, 3, 3, padding=1, layout=layout) for layout in ("NCHW", "NHWC")]
    with RecordStore(path) as store:
        for workload in (anatune.matmul(64, 128, 64), product, *convolutions):
            model = api.model(workload, anatune.hardware("rtx3090"))
            session = store.new_session(workload, model.hardware, 1, "random", 0)
            for number, point in enumerate(np.unique(model.space.sample_points(30, 1), axis=0)):
                measured = Measurement(Outcome.OK, times_s=(1e-4 * (number + 1),))
                store.append(session, Trial(model.space.schedule_of(point), measured, number=number, source="random"))
    (family,) = families(path)
    assert [one.workload for one in family.workloads] == [
        "matmul 64x128x64",
        "conv2d 1x16x14x14 32x16x3x3 --padding 1",
        "conv2d 1x16x14x14 32x16x3x3 --padding 1 --layout NHWC",
    ]
    assert len(family.measured) == 4
    judgement = judge(family, [family], OPTIONS)
    assert (judgement.num_workloads, judgement.num_trials) == (3, sum(one.schedules for one in family.workloads))
    lines = [line.text for line in family_lines(family, judgement, None)]
    assert lines[0].startswith("rtx3090_cuda: 3 workloads, ")
    assert lines[1].startswith("  matmul 64x128x64: ")


def test_one_log_as_two_workloads_is_refused(tmp_path):
    """What an earlier version let in: a cache of one problem size, imported twice under two."""
    path = tmp_path / "r.sqlite"
    with RecordStore(path) as store:
        for size in (128, 256):
            model = api.model(anatune.matmul(size, size, size), anatune.hardware("rtx3090"))
            session = store.new_session(
                model.workload, model.hardware, 1, "kernel_tuner", 0, {"imported": "cache.json"}
            )
            for number, point in enumerate(np.unique(model.space.sample_points(30, 1), axis=0)):
                measured = Measurement(Outcome.OK, times_s=(1e-4 * (number + 1),))
                store.append(
                    session, Trial(model.space.schedule_of(point), measured, number=number, source="kernel_tuner")
                )
    with refuses(RecordError):
        families(path)


def test_one_workload_is_too_few(tmp_path):
    (family,) = families(fill(tmp_path / "r.sqlite", shapes=SHAPES[:1]))
    judgement = judge(family, [family], OPTIONS)
    assert judgement.by_workload is None
    assert not judgement.helps
    with refuses(RecordError):
        train(family, judgement, "r.sqlite", tmp_path / "out", OPTIONS)
