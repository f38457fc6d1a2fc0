"""Saved corrections: back as they were, refused in one line where anything is wrong, used where they belong."""

import copy
import json
import shutil
import sys

import numpy as np
import pytest

pytest.importorskip("lightgbm")

import anatune
from anatune import api
from anatune.errors import MissingDependencyError, ModelVersionError, UnknownNameError
from anatune.model.learned import corrections
from anatune.model.learned.corrected import SHORTLIST, CorrectedModel
from anatune.model.learned.corrections import Card, find_correction, load_correction, save_correction
from anatune.model.learned.residual import ResidualModel, ResidualOptions
from anatune.templates import get_template
from tests.wording import refuses

MATMUL = anatune.matmul(256, 256, 256)
OPTIONS = ResidualOptions(num_trees=30, num_leaves=7, num_members=2)


def card(name="made_up", **changes):
    given = {
        "name": name, "kernels": "ansor", "template": "cuda", "devices": ("rtx3090",), "vendors": (), "data": (),
        "metrics": {}, "feature_names": (), "low": (), "high": (), "offset": 0.0, "noise": 0.0, "files": {},
        "versions": {}, "options": OPTIONS,
    }  # fmt: skip
    return Card(**{**given, **changes})


@pytest.fixture(scope="module")
def model():
    return api.model(MATMUL, anatune.hardware("rtx3090"))


@pytest.fixture(scope="module")
def residual(model):
    points = model.space.sample_points(400, 1)
    table = model.feature_table(points)
    slow = np.log(2.0) * (points[:, list(model.space.columns).index("unroll")] < 512)
    slow[:30] = np.nan
    return ResidualModel(OPTIONS).fit(table.values, table.names, slow, np.zeros(400, dtype=np.int64))


@pytest.fixture
def folder(tmp_path, residual):
    save_correction(tmp_path / "made_up", card(), residual)
    return tmp_path / "made_up"


def test_a_saved_correction_says_the_same(folder, model, residual):
    saved = load_correction(folder)
    values = model.feature_table(model.space.sample_points(50, 2)).values
    for ours, theirs in zip(residual.predict(values), saved.model.predict(values), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)
    assert saved.card.feature_names == residual.names_
    assert set(saved.card.files) == {"member0.txt", "member1.txt", "failures.txt"}


def break_json(**changes):
    def change(folder):
        path = folder / "card.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


DAMAGES = {
    "another feature version": break_json(feature_version=0),
    "another template": break_json(template="cuda9"),
    "another format": break_json(format=7),
    "an unknown key": break_json(surprise=1),
    "limits that do not fit": break_json(low=[1.0]),
    "a card that is no JSON": lambda folder: (folder / "card.json").write_text("{"),
    "no card": lambda folder: (folder / "card.json").unlink(),
    "a changed file": lambda folder: (folder / "member1.txt").write_text("tree"),
    "a missing file": lambda folder: (folder / "member0.txt").unlink(),
    "no member": break_json(files={}),
    "a path out of the folder": break_json(files={"../member0.txt": "0" * 64}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_line(folder, damage):
    DAMAGES[damage](folder)
    with refuses(ModelVersionError) as error:
        load_correction(folder)
    assert "\n" not in str(error.value)


def test_another_template_is_refused(residual):
    tensor_cores = api.model(anatune.matmul(256, 256, 256, dtype="float16"), anatune.hardware("rtx3090"), "triton")
    with refuses(ModelVersionError):
        CorrectedModel(tensor_cores, residual)


def test_features_of_other_names_are_refused(model, residual):
    former = copy.copy(residual)
    former.names_ = (*residual.names_[:-1], "a_former_one")
    with refuses(ModelVersionError) as error:
        CorrectedModel(model, former)
    assert "train it again" in str(error.value)
    former.names_ = residual.names_[::-1]
    with refuses(ModelVersionError):
        CorrectedModel(model, former)


@pytest.mark.parametrize(
    ("called", "kernels", "command"),
    [("ryzen_7950x_cpu", "anatune", "records train"), ("ryzen_7950x_cpu_calibrated", "calibrated", "hw calibrate")],
)
def test_a_users_correction_of_former_features_is_refused_with_the_way_out(
    tmp_path, residual, monkeypatch, called, kernels, command
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = corrections.user_correction_folder() / called
    hardware = anatune.hardware("ryzen_7950x")
    save_correction(own, card(called, template="cpu", kernels=kernels, devices=("ryzen_7950x",)), residual)
    break_json(feature_version=get_template("cpu").feature_version - 1)(own)
    with pytest.raises(ModelVersionError) as error:
        anatune.plan(MATMUL, hardware, 1)
    message = str(error.value)
    assert message.startswith(f"{own}/card.json: format 1, features 1, expected format 1, features 2; ")
    assert f"`anatune {command}`" in message
    assert "\n" not in message
    assert anatune.plan(MATMUL, hardware, 1, correction="none").correction is None
    shutil.rmtree(own)  # "or remove its folder"
    assert anatune.plan(MATMUL, hardware, 1).correction is None


def test_the_users_own_correction_is_used_for_its_device_only(tmp_path, residual):
    save_correction(tmp_path / "rtx3090_cuda", card("rtx3090_cuda", kernels="anatune"), residual)
    found = find_correction(anatune.hardware("rtx3090"), "cuda", user_folder=tmp_path)
    assert found.card.name == "rtx3090_cuda"
    assert find_correction(anatune.hardware("a100_sxm"), "cuda", user_folder=tmp_path) is None
    assert find_correction(anatune.hardware("rtx3090"), "triton", user_folder=tmp_path) is None
    assert find_correction(anatune.hardware("rtx3090"), "cuda", "none", user_folder=tmp_path) is None


def test_a_correction_that_is_trained_again_is_the_one_that_counts(tmp_path, residual, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    digests = [corrections.digest_of_cards()]
    for offset in (0.25, 0.5):
        again = copy.copy(residual)
        again.offset_ = offset
        own = corrections.user_correction_folder() / "rtx3090_cuda"
        save_correction(own, card("rtx3090_cuda", kernels="anatune"), again)
        assert find_correction(anatune.hardware("rtx3090"), "cuda").model.offset_ == offset
        digests.append(corrections.digest_of_cards())
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    monkeypatch.setattr(corrections, "versions_of", lambda *names: "")
    digests.append(corrections.digest_of_cards())
    assert len(set(digests)) == len(digests)


def test_without_lightgbm_there_is_none_unless_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    corrections._load_version.cache_clear()
    assert find_correction(anatune.hardware("k80"), "cuda", user_folder=folder.parent) is None
    with refuses(MissingDependencyError):
        find_correction(anatune.hardware("k80"), "cuda", folder)


def test_an_unknown_name_lists_the_shipped_ones():
    with refuses(UnknownNameError):
        find_correction(anatune.hardware("k80"), "cuda", "no_such_correction")


def test_shipped_corrections_can_be_read_and_helped_on_workloads_left_out():
    cards = corrections.read_shipped_cards()
    assert {"ansor_k80", "ansor_mi50", "autotvm_k80", "autotvm_mi50"} <= {one.name for one in cards.values()}
    for place, one in cards.items():
        assert load_correction(place).model.names_ == one.feature_names
        assert {source.licence for source in one.data} <= {"MIT", "Apache-2.0"}
        (measures,) = one.metrics.values()
        assert measures["all"]["corrected"]["spearman"] > measures["all"]["plain"]["spearman"]
        assert measures["all"]["corrected"]["top8_regret"] <= measures["all"]["plain"]["top8_regret"]


# ---- plan and predict ----------------------------------------------------------------------------------------


def test_a_plan_is_ordered_by_corrected_times(folder):
    hardware = anatune.hardware("rtx3090")
    plain = anatune.plan(MATMUL, hardware, 5)
    plan = anatune.plan(MATMUL, hardware, 5, correction=folder)
    assert plain.correction is None
    assert "correction" not in plain.to_dict()
    assert plan.correction.name == "made_up"
    assert plan.correction.shortlist == SHORTLIST
    assert plan.to_dict()["correction"]["text"].startswith("times and order corrected by made_up")
    times = [prediction.time_s for prediction in plan.predictions]
    assert times == sorted(times)
    assert plan.guarantee.kind in ("exhaustive", "certified")
    frame = anatune.predict(MATMUL, hardware, plan.schedules, correction=folder)
    assert frame["time_s"].tolist() == pytest.approx(times)
    assert (frame["correction"] == "made_up").all()
    without = anatune.predict(MATMUL, hardware, plan.schedules)
    assert frame["plain_s"].tolist() == without["time_s"].tolist()
    assert "correction" not in without


def test_a_plan_of_a_device_with_a_shipped_correction_uses_it_unless_told_not_to():
    hardware = anatune.hardware("k80")
    assert anatune.plan(MATMUL, hardware, 1).correction.name == "ansor_k80"
    assert anatune.plan(MATMUL, hardware, 1, correction="none").correction is None


def test_shipped_corrections_are_of_the_template_whose_kernels_they_describe(tmp_path):
    k80 = anatune.hardware("k80")
    assert find_correction(k80, "cuda", user_folder=tmp_path).card.name == "ansor_k80"
    assert find_correction(k80, "pipelined", user_folder=tmp_path) is None  # Ansor's kernels have no pipelines
