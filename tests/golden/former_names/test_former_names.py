"""Files that anatune wrote when templates were called gpu, gpu_pipelined and gpu_tensorcore.

schedule.json: `Schedule.to_json` of a plan. records.sqlite.gz: two sessions of 4 trials of matmul 32x32x16 on an h200
that was not there (times are made up), templates gpu_pipelined and gpu; commit 72cde43.
"""

import gzip
from pathlib import Path

import msgspec
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.model.learned.corrections import find_correction, load_correction, read_card, shipped_cards
from anatune.records.export import import_json_lines, json_lines
from anatune.records.store import RecordStore
from anatune.tuning.manifest import Manifest
from anatune.tuning.session import StandIns, TuningSession
from anatune.tuning.settings import TuningSettings
from tests.unit.tuning.fakes import FakeMeasurer, key_of

HERE = Path(__file__).parent
H200, WORKLOAD = anatune.hardware("h200"), anatune.matmul(32, 32, 16)


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "tuning.sqlite"
    path.write_bytes(gzip.decompress((HERE / "records.sqlite.gz").read_bytes()))
    return path


class OnGpu(FakeMeasurer):
    def __init__(self, *arguments, template, l2, device, backend, **keywords):
        super().__init__(*arguments, **keywords)


def session(path, **more):
    settings = TuningSettings(records=path, **{"strategy": "random", **more})
    return TuningSession(WORKLOAD, H200, settings, stand_ins=StandIns(host=H200, measurer=OnGpu, program_key=key_of))


def test_a_schedule():
    text = (HERE / "schedule.json").read_text()
    assert '"gpu_tensorcore"' in text
    made = Schedule.from_json(text)
    assert made.template == msgspec.json.decode(text, type=Schedule).template == "tensorcore"
    assert made.to_json() == text.strip().replace("gpu_tensorcore", "tensorcore")
    assert made == msgspec.structs.replace(made, template="gpu_tensorcore")
    assert anatune.predict(made.workload, made.hardware, [made])["legal"].all()


def test_trials_are_found_and_sessions_go_on(records):
    with RecordStore(records) as store:
        read = store.trials()
        assert len(read) == 13
        assert {record.trial.schedule.template for record in read} == {"pipelined", "cuda"}
        assert [one.settings["template"] for one in store.sessions()] == ["pipelined", "cuda"]
        before = store.best(WORKLOAD, "h200")
    for template in (None, "cuda", "gpu"):  # None: pipelined
        result = session(records, trials=6, resume=True, template=template).run()
        assert (result.num_resumed, len(result.trials)) == (6 if template == "gpu" else 4, 6)
        assert len({trial.schedule.key for trial in result.trials}) == 6
    with RecordStore(records) as store:
        assert len(store.sessions()) == 2
        after = store.best(WORKLOAD, "h200")
    assert after.trial.schedule == before.trial.schedule
    assert len(after.trial.measurement.times_s) == 6


def test_the_samples_of_a_schedule_are_counted_together(records):
    """A rerun under the new name speaks about the same schedule: one that now is wrong is the best no longer."""
    with RecordStore(records) as store:
        best = store.best(WORKLOAD, "h200")
        wrong = Measurement(Outcome.WRONG_RESULT, "off by one")
        store.append(best.session, msgspec.structs.replace(best.trial, measurement=wrong))
        assert store.best(WORKLOAD, "h200").trial.schedule != best.trial.schedule


def test_importing_what_is_there_adds_nothing(records):
    with RecordStore(records) as store:
        lines = list(json_lines(store.trials()))
        assert "gpu_pipelined" not in "".join(lines)
        assert import_json_lines(store, lines) == (0, 0)
        former = [line.replace('"pipelined"', '"gpu_pipelined"').replace('"cuda"', '"gpu"') for line in lines]
        assert former != lines
        assert import_json_lines(store, former) == (0, 0)
    with RecordStore(records.with_name("other.sqlite")) as other:
        assert import_json_lines(other, former) == (2, 13)
        assert {record.trial.schedule.template for record in other.trials()} == {"pipelined", "cuda"}


def test_cards(tmp_path):
    shipped = next(folder for folder, card in shipped_cards().items() if card.name == "ansor_k80")
    for name in ("k80_gpu", "k80_cuda"):
        (tmp_path / name).mkdir()
        for path in shipped.iterdir():
            (tmp_path / name / path.name).write_bytes(path.read_bytes())
        former = (shipped / "card.json").read_text().replace('"template": "cuda"', '"template": "gpu"')
        assert '"gpu"' in former
        (tmp_path / name / "card.json").write_text(former)
        assert read_card(tmp_path / name).template == "cuda"
        pytest.importorskip("lightgbm")
        assert load_correction(tmp_path / name).card.template == "cuda"
        found = find_correction(anatune.hardware("k80"), "cuda", user_folder=tmp_path)
        assert found.folder == tmp_path / name  # a new one is preferred


def test_manifests():
    raw = {name: None for name in Manifest.__struct_fields__} | {"template": "gpu_pipelined"}
    assert Manifest(**raw).template == "pipelined"
