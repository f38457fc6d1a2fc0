"""MetaSchedule's lines: decisions, times, and what target and argument shapes say."""

import anatune
from anatune.adapters.logs import read_foreign
from tests.unit.adapters.logs.making import metaschedule, written
from tests.wording import check_texts

MATMUL = anatune.matmul(64, 64, 64)
GPU = anatune.hardware("rtx3090")


def stated(target, *shapes):
    """Return a line with a target and argument shapes."""
    line = metaschedule()
    line[1][2:] = [target, [["TENSOR", "float32", list(shape)] for shape in shapes]]
    return line


def test_decisions(tmp_path):
    found = read_foreign(written(tmp_path / "log.json", metaschedule(), metaschedule(times=None)), GPU, MATMUL)
    first, failed = (one.trial for one in found.trials)
    assert first.schedule.tiles == {"i": (4, 1, 8, 2, 1), "j": (2, 1, 16, 1, 2), "k": (8, 4, 2)}
    assert (first.schedule.unroll, first.schedule.vector["A"]) == (64, 4)
    assert first.measurement.time_s == 3e-5
    assert failed.measurement.time_s is None


def test_targets_and_shapes_are_checked(tmp_path):
    square = [(64, 64)] * 3
    lines = [
        stated({"kind": "cuda", "arch": "sm_86"}, *square),
        stated({"kind": "cuda", "arch": "sm_80"}, *square),
        stated({"kind": "llvm", "mcpu": "znver4"}, *square),
        stated({"kind": "cuda"}, (64, 32), (32, 64), (64, 64)),
        stated({"kind": "cuda", "tag": "nvidia/geforce-rtx-3090"}, *square),
    ]
    found = read_foreign(written(tmp_path / "log.json", *lines), GPU, MATMUL)
    assert [one.trial.number for one in found.trials] == [0, 4]
    check_texts(found.left_out)


def test_what_shapes_leave_open_is_asked_for(tmp_path):
    found = read_foreign(written(tmp_path / "log.json", stated({"kind": "cuda"}, *[(64, 64)] * 3)), GPU)
    assert not found.trials
    assert "several products fit" in next(iter(found.left_out))
