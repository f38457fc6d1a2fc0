"""Logs of other tuners with known times: the same seconds in every unit, form and encoding, beside bad entries."""

import json
import random

import pytest

import anatune
from anatune.adapters.kernel_tuner_files import read_results, write_cache
from anatune.adapters.logs import read_foreign
from anatune.core.trial import Measurement, Outcome
from anatune.errors import RecordError
from anatune.records.export import is_export
from tests.unit.adapters.logs.making import ansor, autotvm, kernel_tuner, metaschedule
from tests.wording import refuses

GPU, MATMUL = anatune.hardware("rtx3090"), anatune.matmul(64, 64, 64)
KNOBS = {name: value for name, value in kernel_tuner().items() if name != "time"}
UNITS = {
    **dict.fromkeys(("s", "S", "sec", "second", "seconds", "Seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds", " ms "), 1e3),
    **dict.fromkeys(("us", "usec", "\u00b5s", "\u03bcs", "microsecond", "microseconds"), 1e6),
    **dict.fromkeys(("ns", "nsec", "nanosecond", "nanoseconds", "Nanoseconds"), 1e9),
}
NO_TIMES = [
    float("nan"),
    float("inf"),
    -float("inf"),
    None,
    "InvalidConfig",
    "nan",
    1e20,
    1e30,
    0,
    -1.0,
    True,
    [],
    [None],
]


def samples(rng):
    return [round(rng.uniform(1e-6, 1e-2), 9) for _ in range(rng.choice((1, 1, 2, 5)))]


def given_as(times, rng):
    """Return numbers as tuners write them: one alone or a list, as text or not."""
    values = [repr(time) for time in times] if rng.random() < 0.3 else list(times)
    return values[0] if len(values) == 1 and rng.random() < 0.7 else values


def result(value, unit, rng, **changes):
    """Return an entry of a T4 file; a unit of None is left out."""
    name = rng.choice(("time", "time", "runtime", None)) if unit else rng.choice(("time", None))
    config = {key: str(knob) for key, knob in KNOBS.items()} if rng.random() < 0.5 else KNOBS
    entry = {"configuration": config, "times": {"compilation": 3.0, "runtimes": [7.0]}, "invalidity": "correct"}
    entry["objectives"] = ["GFLOP/s", name or "time"]
    entry["measurements"] = [{"name": "GFLOP/s", "value": 671.0, "unit": "GFLOP/s"}]
    if name is not None:
        entry["measurements"].append({"name": name, "value": value, **({} if unit is None else {"unit": unit})})
    return entry | changes, name


def results_file(rng):
    """Return the text of a T4 file, and the times of its good entries, s."""
    whole_unit = rng.choice([None, "", *UNITS])
    in_file = UNITS[whole_unit] if whole_unit else 1e3
    entries, expected = [], []
    for _ in range(rng.randint(1, 5)):
        times = samples(rng)
        unit = rng.choice([None, "", *UNITS])
        scale = UNITS[unit] if unit else in_file
        entry, name = result(given_as([time * scale for time in times], rng), unit, rng)
        if name is None:
            entry["times"]["runtimes"] = [time * in_file for time in times]
            entry["measurements"] = entry["measurements"] if rng.random() < 0.5 else []
        entries.append(entry)
        expected.append(times)
        for _ in range(rng.choice((0, 0, 1, 2))):
            entries.append(bad_result(rng))
    head = {"schema_version": "1.0.0", **({} if whole_unit is None else {"metadata": {"timeunit": whole_unit}})}
    whole = {**head, "results": entries} if rng.random() < 0.5 else {"results": entries, **head}
    return json.dumps(whole, indent=rng.choice((None, 1)), ensure_ascii=False), expected


def bad_result(rng):
    time = {"name": "time", "value": rng.choice(NO_TIMES), "unit": rng.choice(("s", "ms", "", "us"))}
    entry = {"configuration": KNOBS, "times": {"runtimes": []}, "invalidity": "correct", "measurements": [time]}
    return rng.choice(
        [
            entry,
            entry | {"invalidity": "timeout"},
            entry | {"measurements": [time | {"value": 1.0, "unit": "furlongs"}]},
            entry | {"measurements": []},
            entry | {"measurements": {"time": 3}},
            entry | {"configuration": None},
            {},
            3,
            None,
        ]
    )


def cache_file(rng):
    """Return the text of a cache, whose times are ms, and the times of its good entries, s."""
    entries, expected = [], []
    for _ in range(rng.randint(1, 5)):
        times = samples(rng)
        values = [time * 1e3 for time in times]
        entries.append({**KNOBS, **({"times": values, "time": 9.0} if rng.random() < 0.5 else {"time": values[0]})})
        expected.append(times if "times" in entries[-1] else times[:1])
        if rng.random() < 0.3:
            entries.append({**KNOBS, "time": rng.choice(NO_TIMES)})
    lines = ",\n".join(f'"{number}": {json.dumps(entry)}' for number, entry in enumerate(entries))
    return '{"tune_params_keys": ' + json.dumps(list(KNOBS)) + ',\n"cache": {\n' + lines + "\n}\n}", expected


def lines_file(make, rng):
    """Return the text of a log of TVM's, whose times are s."""
    lines, expected = [], []
    for _ in range(rng.randint(1, 5)):
        times = samples(rng)
        lines.append(make(times))
        expected.append(times)
        for bad in rng.sample([float("nan"), float("inf"), 1e10, 1e9, None, "x"], rng.choice((0, 1, 2))):
            lines.append(make([bad, 1e-5]))
    return "\n".join(map(json.dumps, lines)) + rng.choice(("", "\n")), expected


def encoded(text, rng):
    text = text.replace("\n", "\r\n") if rng.random() < 0.3 else text
    return text.encode(rng.choice(("utf-8", "utf-8-sig", "utf-16")))


def times_of(measurements):
    return [list(one.times_s) for one in measurements if one.time_s is not None]


def near(expected):
    return [pytest.approx(times, rel=1e-12) for times in expected]


@pytest.mark.parametrize("make", [results_file, cache_file])
@pytest.mark.parametrize("seed", range(60))
def test_times_of_kernel_tuner_and_ktt(tmp_path, make, seed):
    rng = random.Random(seed)
    text, expected = make(rng)
    path = tmp_path / "log.json"
    path.write_bytes(encoded(text, rng))
    assert times_of(measurement for _, measurement in read_results(path).entries) == near(expected)
    trials = [one.trial for one in read_foreign(path, GPU, MATMUL).trials]
    assert times_of(trial.measurement for trial in trials) == near(expected)
    tiles = {"i": (2, 1, 8, 1, 4), "j": (2, 2, 8, 1, 2), "k": (4, 8, 2)}
    assert all(trial.schedule.tiles == tiles for trial in trials)


@pytest.mark.parametrize("make", [autotvm, ansor, metaschedule])
@pytest.mark.parametrize("seed", range(10))
def test_times_of_tvm(tmp_path, make, seed):
    rng = random.Random(seed)
    text, expected = lines_file(make, rng)
    path = tmp_path / "log.json"
    path.write_bytes(encoded(text, rng))
    workload = None if make is autotvm else MATMUL
    found = read_foreign(path, GPU, workload)
    assert times_of(one.trial.measurement for one in found.trials) == near(expected)


@pytest.mark.parametrize("seed", range(40))
def test_a_results_file_that_is_cut_or_damaged_has_its_other_entries(tmp_path, seed):
    """Of a file that is no JSON the whole entries are read, and what is between or behind them is counted."""
    rng = random.Random(seed)
    times = [[1e-5 * (number + 1)] for number in range(5)]
    entries = [json.dumps(result(one[0] * 1e6, "us", random.Random(1))[0]) for one in times]
    hurt = rng.randrange(5)
    head, tail = '{"schema_version": "1.0.0", "results": [', '], "metadata": {"timeunit": "milliseconds"}}'
    if rng.random() < 0.5:  # one entry is damaged
        middle = rng.randrange(2, len(entries[hurt]) - 2)
        entries[hurt] = entries[hurt][:middle] + "\x00" + entries[hurt][middle + 1 :]
        text, left = head + ", ".join(entries) + tail, times[:hurt] + times[hurt + 1 :]
    else:
        text = head + ", ".join(entries[: hurt + 1])
        cut = rng.randrange(1, len(entries[hurt]))
        text, left = text[: len(text) - cut], times[:hurt]
    path = tmp_path / "t4.json"
    path.write_text(text)
    if not left:
        with pytest.raises(RecordError):
            read_results(path)
        return
    found = [times_of([measurement])[0] for _, measurement in read_results(path).entries]
    assert found == near(left)
    assert sum(read_results(path).left_out.values()) >= 1


def test_reasons_are_told_and_a_file_without_any_time_is_refused(tmp_path):
    path = tmp_path / "t4.json"
    rng = random.Random(0)
    good, bad = (result(5.0, unit, rng)[0] for unit in ("us", "cycles"))
    for entry in (good, bad):
        entry["measurements"] = [{"name": "time", "value": 5.0, "unit": "us" if entry is good else "cycles"}]
    path.write_text(json.dumps({"results": [good, bad, {}]}))
    reasons = {"its time is in 'cycles', expected s, ms, us or ns": 1, "damaged or of an unknown version": 1}
    assert read_results(path).left_out == reasons
    assert list(read_foreign(path, GPU, MATMUL).left_out.values()) == [1, 1]
    path.write_text(json.dumps({"results": [bad]}))
    with refuses(RecordError):
        read_results(path)
    path.write_bytes(b"\x1f\x8b\x08" + bytes(20))
    with refuses(RecordError):
        read_results(path)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_written_is_read_with_the_same_times(tmp_path, seed):
    rng = random.Random(seed)
    entries = [({"bx": number}, Measurement(Outcome.OK, times_s=tuple(samples(rng)))) for number in range(5)]
    write_cache(tmp_path / "c.json", entries, kernel_name="k", problem_size=[1], device_name="d")
    found = read_results(tmp_path / "c.json").entries
    assert times_of(measurement for _, measurement in found) == near([list(one.times_s) for _, one in entries])


def test_an_export_with_a_byte_order_mark_is_one(tmp_path):
    path = tmp_path / "export.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"kind": "session", "format": 1}\n')
    assert is_export(path)
