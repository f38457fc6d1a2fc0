"""``anatune plan`` from the shell."""

import itertools
import json
import math
import re

import pytest

import anatune as package
from anatune.core.schedule import Schedule

DEVICES = ("rtx3090", "xeon_gold_6230r")
OPERATORS = {  # one small shape for every operator that a workload's text may start with
    "matmul": "matmul 32x64x48",
    "batch_matmul": "batch_matmul 2x16x32x8",
    "conv1d": "conv1d 1x8x18 16x8x3",
    "conv2d": "conv2d 1x8x10x10 16x8x3x3 --padding 1",
    "conv3d": "conv3d 1x4x4x6x6 4x4x1x3x3",
    "depthwise_conv2d": "depthwise_conv2d 1x8x10x10 8x1x3x3",
    "max_pool1d": "max_pool1d 1x8x16 2 --stride 2",
    "max_pool2d": "max_pool2d 1x8x8x8 2x2 --stride 2",
    "max_pool3d": "max_pool3d 1x4x4x4x4 2x2x2 --stride 2",
    "avg_pool1d": "avg_pool1d 1x8x16 2 --stride 2",
    "avg_pool2d": "avg_pool2d 1x8x8x8 2x2 --stride 2",
    "avg_pool3d": "avg_pool3d 1x4x4x4x4 2x2x2 --stride 2",
    "reduction": "reduction 32x64 --axes 1",
    "sum": "sum 32x64 --axes 1",
    "max": "max 32x64 --axes 0",
    "mean": "mean 32x64 --axes 1",
    "elementwise": "elementwise 32x64",
    "relu": "relu 32x64",
    "add": "add 32x64",
    "maximum": "maximum 32x64",
    "multiply": "multiply 32x64",
    "copy": "copy 32x64",
    "einsum": "einsum bij,bjk->bik 2x8x16 2x16x8",
}
FOR_GPUS = {  # kernels that only Triton makes
    "attention": "attention 1x4x2x64x64x64 --causal --dtype float16",
    "scaled_matmul": "scaled_matmul 64x128x256 --scales blocks",
    "grouped_matmul": "grouped_matmul 64x8x2x128x256 --routing power:1.2 --activation",
    "rotary": "rotary 64x4x64",
    "quantise_groups": "quantise_groups 64x256x128 --dtype bfloat16:float8_e4m3fn",
    "quantise_tensor": "quantise_tensor 64x256 --dtype bfloat16:float8_e4m3fn",
    "quantise_rows": "quantise_rows 64x256 --dtype float16:int8",
    **{name: f"{name} 64x256" for name in ("softmax", "layer_norm", "rms_norm", "add_rms_norm", "silu_multiply")},
}
PREDICTION_KEYS = {
    "time_s",
    "gflop_per_s",
    "parts",
    "bound_by",
    "occupancy",
    "occupancy_limiter",
    "waves",
    "features",
    "traffic_over_bound",
    "resources",
    "legal",
    "rule",
}


def answer(done):
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def check_contract(tree, top_k):
    several = {"accuracy", "spaces"} if "spaces" in tree else set()
    assert set(tree) == several | {
        *("workload", "hardware", "template", "threads", "space", "guarantee", "num_alike_is_exact", "schedules")
    }
    assert tree["hardware"].keys() == {"name", "model", "arch"}
    space = tree["space"]
    assert space.keys() == {"size", "legal", "rejected", "rules"}
    assert space["size"] == space["legal"] + sum(space["rejected"].values())
    assert {rule["id"] for rule in space["rules"]} == set(space["rejected"])
    if several:
        assert sum(one["size"] for one in tree["spaces"]) == space["size"]
        assert all(one["size"] == one["legal"] + sum(one["rejected"].values()) for one in tree["spaces"])
    assert all(rule.keys() == {"id", "text", "limit"} for rule in space["rules"])
    assert tree["guarantee"]["kind"] in ("exhaustive", "certified")
    assert {"kind", "gap", "num_evaluated", "num_bounded", "text"} == tree["guarantee"].keys()
    schedules = tree["schedules"]
    assert len(schedules) <= min(top_k, space["legal"])
    alike = sum(1 + schedule["num_alike"] for schedule in schedules)
    assert len(schedules) == top_k or alike == space["legal"] or tree["num_alike_is_exact"] is False
    times = [schedule["prediction"]["time_s"] for schedule in schedules]
    assert len(set(times)) == len(times)
    assert all(later >= sooner * (1 - 2e-3) for sooner, later in itertools.pairwise(times))
    extents = {axis["name"]: axis["extent"] for axis in tree["workload"]["axes"]}
    for schedule in schedules:
        is_plain = schedule["template"] != "winograd"
        assert schedule.keys() - {"error_bound"} == {*Schedule.__struct_fields__, "prediction", "num_alike"}
        assert is_plain or 0 < schedule["error_bound"] < 1e-3
        if is_plain:  # others tile what they make of the axes
            assert {axis: math.prod(factors) for axis, factors in schedule["tiles"].items()} == extents
        prediction = schedule["prediction"]
        assert prediction.keys() == PREDICTION_KEYS
        assert prediction["legal"] is True
        assert prediction["time_s"] > 0
        assert f"{prediction['bound_by']}_s" in prediction["parts"]
        assert all(value >= 0 for value in prediction["parts"].values())
        assert 0 < prediction["occupancy"] <= 1
        assert all(value >= 1 - 1e-9 for value in prediction["traffic_over_bound"].values())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator(anatune, operator, device):
    done = anatune("plan", "--hw", device, *OPERATORS[operator].split(), "--top-k", 3, "--json")
    check_contract(answer(done), 3)


def test_no_operator_is_missing_here():
    from anatune.core.workload.text import operator_words

    assert set(operator_words()) == {*OPERATORS, *FOR_GPUS}


@pytest.mark.parametrize("operator", FOR_GPUS)
def test_kernels_for_gpus_are_planned(anatune, operator):
    tree = answer(anatune("plan", "--hw", "h100", *FOR_GPUS[operator].split(), "--top-k", 3, "--json"))
    assert [schedule["template"] for schedule in tree["schedules"]] == ["triton"] * 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["bert:M2", "resnet18:C11"])
def test_layers(anatune, name, device):
    tree = answer(anatune("plan", name, "--hw", device, "--json"))
    check_contract(tree, 10)


@pytest.mark.parametrize("device", DEVICES)
def test_table(anatune, device):
    done = anatune("plan", "--hw", device, "matmul", "64x96x32", "--top-k", "4")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "\x1b" not in done.stdout
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("matmul i=64 j=96 k=32, float32: 393.2 kFLOP")
    assert any(line.startswith("guarantee: ") for line in lines)
    numbers = [line.split()[0] for line in lines if line[:2].strip().isdigit()]
    assert numbers == 2 * ["1", "2", "3", "4"]  # the table and the schedules
    assert "unroll" in done.stdout


@pytest.mark.parametrize("device", DEVICES)
def test_explain(anatune, device):
    done = anatune("plan", "--hw", device, "matmul", "64x96x32", "--explain", "--top-k", 2)
    assert done.returncode == 0, done.stderr
    flat = " ".join(done.stdout.split())
    for part in (
        "is bound by",
        "No schedule can take less than",
        "A faster schedule needs",
        "Legal:",
        "I/O lower bound",
        "nverified",
    ):
        assert part in flat
    tree = answer(anatune("plan", "--hw", device, "matmul", "64x96x32", "--explain", "--json", "--top-k", 2))
    sentences = tree.pop("explanation")
    assert len(sentences) > 5
    assert all(isinstance(sentence, str) for sentence in sentences)
    check_contract(tree, 2)


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_twice(anatune, device):
    words = ("plan", "--hw", device, "conv2d", "1x16x14x14", "16x16x3x3", "--padding", "1", "--json")
    assert anatune(*words).stdout == anatune(*words).stdout


def test_options_before_and_after_the_words(anatune):
    after = anatune("plan", "conv2d", "1x8x10x10", "8x8x3x3", "--stride", "2", "--hw", "xeon_gold_6230r", "--json")
    before = anatune("plan", "--json", "--stride", "2", "--hw", "xeon_gold_6230r", "conv2d", "1x8x10x10", "8x8x3x3")
    assert answer(after) == answer(before)
    assert dict(answer(after)["workload"]["attributes"])["stride"] in (2, [2, 2])


def test_workload_options_arrive(anatune):
    words = "matmul 16x16x16 --transpose-b --dtype float16 --epilogue bias,relu"
    tree = answer(anatune("plan", "--hw", "xeon_gold_6230r", *words.split(), "--json"))
    assert tree["workload"]["epilogue"] == ["bias", "relu"]
    assert tree["workload"]["reads"][0]["dtype"] == "float16"
    assert dict(tree["workload"]["attributes"])["transpose_b"] is True


def test_ties_are_counted_or_listed(anatune):
    words = ("plan", "--hw", "rtx3090", "matmul", "64x96x32", "--top-k", 3)
    tree = answer(anatune(*words, "--json"))
    first, second, _ = (schedule["num_alike"] for schedule in tree["schedules"])
    assert tree["num_alike_is_exact"] is True
    more = first + second + 3  # the ties of two times, and the first of the third
    listed = answer(anatune(*words[:-1], more, "--all", "--json"))
    assert listed["num_alike_is_exact"] is None
    assert all("num_alike" not in schedule for schedule in listed["schedules"])
    times = [schedule["prediction"]["time_s"] for schedule in listed["schedules"]]
    best = [schedule["prediction"]["time_s"] for schedule in tree["schedules"]]
    assert times == [best[0]] * (first + 1) + [best[1]] * (second + 1) + [best[2]]
    text = anatune(*words).stdout
    ties = re.findall(r"^ +([\d,]+) more of the same predicted time$", text, re.MULTILINE)
    assert ties[:2] == [f"{first:,}", f"{second:,}"]
    assert "--all" in text
    assert "same predicted time" not in anatune(*words, "--all").stdout
    assert anatune(*words, "--distinct").stdout.splitlines()[8:] == text.splitlines()[8:]


def test_ties_on_cpus_are_at_least_so_many(anatune):
    done = anatune("plan", "--hw", "xeon_gold_6230r", "matmul", "256x384x768", "--top-k", 3)
    assert re.search(r"^ +at least [\d,]+ more of the same predicted time$", done.stdout, re.MULTILINE)


def test_threads(anatune):
    words = ("plan", "--hw", "xeon_gold_6230r", "matmul", "512x512x512", "--top-k", 1)
    one, all_ = answer(anatune(*words, "--threads", 1, "--json")), answer(anatune(*words, "--json"))
    assert (one["threads"], all_["threads"]) == (1, 26)
    assert one["schedules"][0]["hardware"]["compute"]["num_cores"] == 1
    assert one["schedules"][0]["prediction"]["time_s"] > all_["schedules"][0]["prediction"]["time_s"]
    assert "(xeon_gold_6230r, cascadelake), 1 thread: peak 147.2 GFLOP/s" in " ".join(
        anatune(*words, "--threads", 1).stdout.split()
    )


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        ("--hw rtx3090 --threads 1", 2, r"--threads\b.*\brtx3090\b"),
        ("--hw xeon_gold_6230r --threads 27", 1, r"threads is 27, expected .*\b1 to 26\b"),
        ("--hw xeon_gold_6230r --threads 0", 2, "--threads"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "prune"])
def test_threads_that_do_not_apply_are_one_line(anatune, command, options, status, text):
    done = anatune(command, *options.split(), "matmul", "8x8x8")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert re.search(text, done.stderr)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--hw rtx3090", "template: cuda (plan's default); others for --template: pipelined (tune's default), triton"),
        ("--hw rtx3090 --template triton", ": cuda (plan's default), pipelined (tune's default)"),
        ("--hw xeon_gold_6230r", "template: cpu guarantee: "),
    ],
)
def test_the_template_is_named(anatune, options, text):
    done = anatune("plan", *options.split(), "matmul", "64x64x64", "--top-k", 1)
    assert text in " ".join(done.stdout.split())


def test_spec_file_and_host(anatune, tmp_path):
    spec = tmp_path / "intel_mine.toml"
    spec.write_text(anatune("hw", "show", "xeon_gold_6230r").stdout.replace('"xeon_gold_6230r"', '"mine"', 1))
    assert answer(anatune("plan", "--hw", spec, "matmul", "16x16x16", "--json"))["hardware"]["name"] == "mine"
    home = str(tmp_path / "home")
    assert answer(anatune("plan", "--hw", "host", "matmul", "16x16x16", "--json", XDG_CONFIG_HOME=home))["schedules"]


def test_time_limit_is_honest(anatune):
    done = anatune("plan", "--hw", "xeon_gold_6230r", "matmul", "512x512x512", "--time-limit", "0.001", "--json")
    if done.returncode:  # nothing was found in so little time
        assert "time limit" in done.stderr
    else:
        assert json.loads(done.stdout)["guarantee"]["kind"] in ("best_found", "certified", "exhaustive")


@pytest.mark.parametrize("options", ["--hw rtx3090", "--hw epyc_7763", "--hw a100 --template triton", "--hw k80"])
def test_the_library_explains_in_the_same_words(anatune, options):
    done = anatune("plan", *options.split(), *["matmul", "64x64x48", "--explain", "--json", "--top-k", "3"])
    assert done.returncode == 0, done.stderr
    _, hw, *rest = options.split()
    plan = package.plan(package.matmul(64, 64, 48), hw, 64, distinct=True, template=rest[-1] if rest else None)
    assert plan.explain().splitlines() == json.loads(done.stdout)["explanation"]
    assert len(plan.explain().splitlines()) > 8


def test_a_plan_without_schedules_explains_why():
    plan = package.plan(package.matmul(64, 64, 64, dtype="bfloat16"), "t4", 3)
    assert not plan.schedules
    assert "none of" in plan.explain()
    assert "compute capability" in plan.explain()
