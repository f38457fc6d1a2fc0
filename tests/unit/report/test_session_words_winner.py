import msgspec

import anatune
from anatune.core.trial import Trial
from anatune.report.session_words import winner_sentences
from anatune.report.sessions import session_views
from tests.unit.report.recorded import ran, usual


def test_the_model_says_why_the_winner_won():
    workload, device = anatune.matmul(64, 48, 32), anatune.hardware("xeon_8124m")
    plan = anatune.plan(workload, device, top_k=40, threads=1)
    first, other = plan.schedules[0], plan.schedules[-1]
    trials = [Trial(first, ran(2e-6), 0, "plan", 1e-6), Trial(other, ran(1e-6), 1, "model", 1.1e-6)]
    (view,) = session_views(trials)
    sentences = winner_sentences(view)
    assert sentences[0].startswith("Trial 1 was the fastest: i ")
    assert sentences[1].startswith("Prediction: it takes ")
    assert any("first choice was trial 0; the winner differs in" in one for one in sentences)
    assert sentences[-1].startswith("The winner is predicted to take ")
    (alone,) = session_views(trials[:1])
    assert len(winner_sentences(alone)) == 2


def test_what_is_no_point_of_the_model_is_only_named():
    records = [msgspec.structs.replace(one, trial=one.trial) for one in usual()]  # tiles by hand: no legal point
    (view,) = session_views(records)
    assert winner_sentences(view)[0].startswith("Trial 2 won: i ")
    (lost,) = session_views([one for one in records if one.trial.measurement.time_s is None])
    assert winner_sentences(lost) == []
