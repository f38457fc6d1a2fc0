"""``anatune prune`` as a person runs it: formats, counts, and one clear line for bad input."""

import ast
import csv
import io
import json

import pytest

import anatune as library
from anatune.listing.writers import OTHER_LINES


def test_json_lists_the_plan_first(anatune):
    done = anatune("prune", "--hw", "rtx3090", "matmul", "256x256x64", "--keep", "0.01", "--for", "json", "--most", "7")
    assert done.returncode == 0, done.stderr
    tree = json.loads(done.stdout)
    assert tree["num_listed"] == len(tree["schedules"]) == 7
    assert tree["num_kept"] == -(-tree["space"]["legal"] // 100)
    assert "7" in done.stderr
    assert "--most" in done.stderr
    plan = library.plan(library.matmul(256, 256, 64), library.hardware("rtx3090"), top_k=7)
    assert [s["prediction"]["time_s"] for s in tree["schedules"]] == [p.time_s for p in plan.predictions]
    assert [s["tiles"] for s in tree["schedules"]] == [
        {axis: list(tile) for axis, tile in s.tiles.items()} for s in plan.schedules
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["--hw", "rtx3090", "--keep", "5", "--distinct"],
        ["--hw", "a100", "--keep", "5", "--template", "triton"],
        ["--hw", "intel_xeon_gold_6130", "--keep", "5"],
    ],
)
def test_csv_is_a_table(anatune, words):
    done = anatune("prune", "matmul", "64x64x64", *words, "--for", "csv")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or "compiling the" in done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["place"] for row in rows] == list("12345")
    times = [float(row["time_s"]) for row in rows]
    assert max(times) < 1.1 * min(times)
    assert len(set(times)) == 5 if "--distinct" in words else True


def test_triton_is_python(anatune):
    done = anatune(
        "prune", "--hw", "a100", "matmul", "512x4096x1024", "--dtype", "float16", "--keep", "4", "--for", "triton"
    )
    assert done.returncode == 0, done.stderr
    tree = ast.parse(done.stdout)
    (assignment,) = tree.body
    assert len(assignment.value.elts) == 4
    assert "512 x 4096 x 1024 float16" in done.stdout


def test_kernel_tuner_gets_parameters_and_restrictions(anatune):
    done = anatune("prune", "--hw", "rtx3090", "matmul", "128x256x64", "--keep", "9", "--for", "kernel-tuner")
    assert done.returncode == 0, done.stderr
    tree = json.loads(done.stdout)
    assert tree["num_listed"] == len(tree["configurations"]) == len(tree["predicted_s"]) == 9
    for config in tree["configurations"]:
        assert list(config) == list(tree["tune_params"])
        assert all(value in tree["tune_params"][name] for name, value in config.items())
        assert all(eval(text, {}, config) for text in tree["restrictions"])


def test_metaschedule_gets_lines(anatune):
    done = anatune("prune", "--hw", "rtx3090", "matmul", "128x256x64", "--keep", "9", "--for", "metaschedule")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(line["sample_perfect_tile"]["i"]) for line in lines] == [5] * 9


@pytest.mark.parametrize("form", ["json", "csv", "triton", "kernel-tuner", "metaschedule"])
def test_most_is_said_where_it_ends_the_list(anatune, form):
    words = ["--hw", "rtx3090", "matmul", "128x256x64", "--for", form, "--most", "4"]
    note = anatune("prune", *words, "--keep", "0.5").stderr
    assert "4" in note
    assert "--most" in note
    assert "--most" not in anatune("prune", *words, "--keep", "4").stderr


@pytest.mark.parametrize(
    ("words", "status", "parts"),
    [
        ("--hw rtx3090 matmul 8x8x8 --keep 1.5", 2, ["1.5", "share", "count"]),
        ("--hw rtx3090 matmul 8x8x8 --keep 0", 2, ["0", "share"]),
        ("--hw rtx3090 matmul 8x8x8 --keep some", 2, ["some"]),
        ("--hw rtx3090 matmul 8x8x8 --for yaml", 2, ["yaml", "json", "csv", "triton"]),
        ("--hw rtx3090 matmul 8x8x8 --most 0", 2, ["'0'", "a number >= 1"]),
        ("--hw rtx3090 matmul 8x8x8 --template wmma", 2, ["wmma"]),
        ("--hw rtx3090 matmul 8x8x8 --time-limit nan", 2, ["nan"]),
        ("--hw rtx3090 matmul 8x8x8 --plain --model x", 2, ["--plain"]),
        ("--hw rtx3090 matmul 8x8x8 --distinct", 1, ["0.01", "count"]),
        ("--hw rtx3090 conv2d 1x8x8x8 8x8x3x3 --for triton", 1, ["matmul", "conv2d"]),
        ("--hw intel_xeon_gold_6130 matmul 8x8x8 --for triton", 1, ["no GPU"]),
        ("--hw intel_xeon_gold_6130 matmul 8x8x8 --for kernel-tuner", 1, ["no GPU", "--for json"]),
        ("--hw a100 matmul 64x64x64 --for kernel-tuner --template pipelined", 1, ["pipelined", "cuda", "json"]),
        ("--hw a100 matmul 64x64x64 --for metaschedule --template triton", 1, ["is triton", "cuda"]),
        ("--hw rtx3090 matmul 2x2x2 --for metaschedule", 1, ["32 threads"]),
        ("--hw intel_xeon_gold_6130 matmul 8x8x8 --template pipelined", 1, ["pipelined", "cpu"]),
        ("--hw mi50 matmul 8x8x8 --template pipelined", 1, ["template pipelined", "template cuda"]),
        ("--hw k80 matmul 8x8x8 --template triton", 1, ["k80"]),
        ("--hw rtx9999 matmul 8x8x8", 1, ["rtx9999"]),
        ("--hw rtx3090", 2, ["workload is missing"]),
    ],
)
def test_bad_words(anatune, words, status, parts):
    done = anatune("prune", *words.split())
    assert done.returncode == status, (done.stdout, done.stderr)
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert "gpu_" not in lines[0]  # a word that --template takes, not a schedule's own name of it
    assert all(part in lines[0] for part in parts)


@pytest.mark.parametrize("form", ["json", "csv", "kernel-tuner", "metaschedule"])
def test_few_are_chosen_or_the_first_of_the_order(anatune, form):
    command = ("prune", "--hw", "rtx3090", "matmul", "64x64x64", "--keep", "20", "--for", form)
    chosen, first = (anatune(*command, *more).stdout.splitlines() for more in ((), ("--no-diverse",)))
    assert len(chosen) == len(first) == 20 + OTHER_LINES.get(form, 0)
    if form == "csv":
        assert chosen[:2] == first[:2]  # the head and the best one
    assert chosen[1:] != first[1:]
