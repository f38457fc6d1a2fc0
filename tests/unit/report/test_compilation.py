"""What the compiler changed, as text."""

import msgspec

import anatune
from anatune import api
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.trial import Outcome
from anatune.model.compilation import Compilation, CompiledSchedule
from anatune.report.compilation import compilation_lines, compilation_sentences
from tests.naive_gpu import gpu

WORKLOAD = anatune.matmul(512, 512, 512)


def compilation(registers=(255, 40, 60), failed=()):
    """Three programs with as many registers, those of `failed` refused."""
    model = api.model(WORKLOAD, gpu("rtx3090"))
    points = model.rank(3).points
    before = model.predictions(points)
    entries = []
    for at, prediction in enumerate(before):
        schedule = model.space.schedule_of(points[at])
        if at in failed:
            entries.append(CompiledSchedule(schedule, at + 1, prediction, Outcome.BUILD_TIMEOUT, "too slow"))
            continue
        spilled = 64 if registers[at] == 255 else 0
        shared = int(prediction.resources["shared_bytes_per_block"])
        facts = CompilerFacts(registers[at], shared, spill_bytes=spilled, local_bytes=spilled, code_bytes=4096)
        (after,) = model.compiled_predictions(points[at : at + 1], [facts], [prediction])
        entries.append(CompiledSchedule(schedule, at + 1, prediction, Outcome.OK, "", 0.2, facts, after))
    return Compilation("NVRTC 12.9", tuple(entries), 9, (8,), 2.0)


def test_first_choice_changes():
    text = " ".join(compilation_sentences(compilation()))
    assert (
        "Compiled the 3 different kernels of the first 9 schedules with NVRTC 12.9 in 2.000 s (1.5 kernels/s)" in text
    )
    assert "the time limit left out 1" in text
    assert "The first choice changed: it was number 2 before" in text
    assert "The former first choice is number 3 now" in text
    assert "registers 255 instead of" in text
    assert "spilled registers 16 instead of 0" in text
    assert "shared memory was as predicted for 3 of 3" in text


def test_failures_are_told():
    text = " ".join(compilation_sentences(compilation(failed=(0,))))
    assert "1 of them failed" in text
    assert "The former first choice failed (build_timeout): too slow." in text
    assert "Number 1 failed (build_timeout): too slow." in text
    everything = compilation_sentences(compilation(failed=(0, 1, 2)))
    assert len(everything) == 4
    assert compilation_lines(compilation(failed=(0, 1, 2)))[0].text.startswith("- Compiled the 3")


def test_table():
    lines = [line.text for line in compilation_lines(compilation(), 2)]
    assert lines[0] == "after compilation"
    assert lines[1].split() == ["#", "was", "time", "was", "regs", "was", "shared", "spills", "occupancy", "was"]
    assert lines[2].split()[:2] == ["1", "2"]
    assert lines[4] == ""
    assert all(len(line) <= 80 for line in lines)


def test_json():
    tree = compilation(failed=(2,)).to_dict()
    assert msgspec.json.decode(msgspec.json.encode(tree)) == tree
    assert (tree["num_compiled"], tree["num_failed"], tree["num_left"]) == (2, 1, 1)
    first, second, third = tree["programs"]
    assert (first["before"]["rank"], first["after"]["rank"]) == (1, 2)
    assert second["after"]["registers"] == 40
    assert third["after"] is None
    assert third["message"] == "too slow"
