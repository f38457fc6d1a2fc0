"""What CONTRIBUTING.md tells people to do works: its programs run, its commands are ones that there are."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import anatune as package
from anatune.api import model
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.core.workload.orders import CHANNELS_LAST
from anatune.measure.run.reference import reference
from anatune.network.graph.folding import evaluate_node, fold
from anatune.network.graph.nodes import Constant, Graph, Input, Node, TensorType
from anatune.network.graph.operators import OPERATORS
from anatune.network.graph.passes.layouts import LayoutForm, can_have
from anatune.network.graph.passes.simplify import simplify
from anatune.search import base
from tests import naive_graph

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"


def blocks(kind, heading):
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


@pytest.fixture
def program(monkeypatch):
    """Run the program of a section as a module of its own."""

    def run(heading):
        (text,) = blocks("python", heading)
        made = types.ModuleType("of_contributing")
        monkeypatch.setitem(sys.modules, "of_contributing", made)
        exec(compile(text, str(PAGE), "exec"), made.__dict__)
        return made

    return run


def test_the_device_of_the_recipe(anatune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (text,) = blocks("sh", "A device")
    show, *others = text.splitlines()
    words, _, target = show.partition(" > ")
    shown = anatune(*words.split()[1:]).stdout.replace('name = "rtx3090"', 'name = "my_gpu"')
    Path(target).write_text(shown.replace("num_sms = 82", "num_sms = 41"))
    done = anatune(*others[0].split()[1:])
    assert done.returncode == 1
    assert "compute.fp32_peak_flop_per_s is 3.558e+13, but 2 x num_sms" in done.stdout
    Path(target).write_text(shown)
    for line in others:
        done = anatune(*line.split()[1:])
        assert (done.returncode, "my_gpu" in done.stdout) == (0, True), done.stderr


def test_the_operator_of_the_recipe(program):
    matvec = program("An operator").matvec(24, 40)
    inputs = {"A": [[i + k for k in range(40)] for i in range(24)], "B": [k % 3 for k in range(40)]}
    result = reference(matvec, inputs)
    assert list(result) == [sum((i + k) * (k % 3) for k in range(40)) for i in range(24)]
    for hw in ("rtx3090", "xeon_gold_6230r"):
        assert package.plan(matvec, hw, top_k=1).best.check()


def test_the_operator_of_models_of_the_recipe(program, monkeypatch):
    made = program("An operator of networks").hypot
    monkeypatch.setitem(OPERATORS, made.name, made)
    first, second = (np.full((1, 2, 4, 4), number, np.float32) for number in (3.0, 4.0))
    x = Input("x", TensorType(first.shape, "float32"))
    assert np.array_equal(fold(Node("hypot", (Constant(first), Constant(second)), x.type)).array, first + 2)
    node = Node("hypot", (x, Constant(second)), x.type)
    assert np.array_equal(evaluate_node(node, {x: first}), first + 2)
    assert can_have(node, LayoutForm(CHANNELS_LAST, CHANNELS_LAST))
    turned = simplify(Graph((x,), (Node("hypot", (Constant(second), x), x.type),), is_tuple=False)).outputs[0]
    assert turned.arguments[0] is x


def test_the_strategy_of_the_recipe(program, monkeypatch):
    program("A strategy")
    monkeypatch.setattr(base, "STRATEGIES", {"alternating": "of_contributing:AlternatingStrategy"})
    made = model(package.matmul(64, 64, 64), package.hardware("rtx3090"))
    strategy = base.make_strategy("alternating", made)
    asked = strategy.ask(6)
    strategy.tell([Trial(one, Measurement(Outcome.OK, times_s=(1e-6,))) for one in asked])
    assert len({one.key for one in [*asked, *strategy.ask(6)]}) == 12
    assert asked[0] == package.plan(made.workload, made.hardware, top_k=1, template="cuda").best


def test_the_pass_of_the_recipe(program):
    value = Input("x", TensorType((2, 3), "float32"))
    once = Node("nn.relu", (value,), value.type)
    graph = Graph((value,), (Node("nn.relu", (once,), value.type),), is_tuple=False)
    after = program("A pass over networks").without_repeated_rectifiers(graph)
    array = np.arange(-3.0, 3.0).reshape(2, 3)
    assert np.array_equal(naive_graph.run(after, array)[0], naive_graph.run(graph, array)[0])
    assert (len(graph.nodes()), len(after.nodes())) == (2, 1)


def test_what_it_names_is_there():
    text = PAGE.read_text()
    paths = set(re.findall(r"`((?:anatune|tests|docs|bench)/[\w./]+)`", text))
    assert len(paths) > 15
    assert not [path for path in paths if not (ROOT / path).exists()]
    assert {name.removesuffix(".md") for name in re.findall(r"`([A-Z]+\.md)`", text)} <= {"ARCHITECTURE", "CHANGELOG"}


def test_it_lists_the_checks_of_ci():
    (text,) = blocks("sh", "Before you hand it in")
    told = {line.split()[0] for line in text.replace(" && ", "\n").splitlines()}
    steps = {line.split()[1] for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("check ")}
    assert told == steps | {"pytest"}
