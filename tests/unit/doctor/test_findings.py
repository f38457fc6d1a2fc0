import json

from anatune.doctor.findings import Finding, lines, tree
from anatune.report.text import join_lines

FOUND = [
    Finding("To plan", "ok", "planning", "works", "everything"),
    Finding("More commands", "missing", "onnx", "onnx is not installed", "compile MODEL.onnx", "pip install x"),
]


def test_one_line_a_finding():
    assert join_lines(lines(FOUND)).splitlines() == [
        "To plan",
        "ok       planning: works",
        "",
        "More commands",
        "missing  onnx: onnx is not installed [compile MODEL.onnx]; pip install x",
        "",
        "anatune can plan; missing for some commands: onnx",
    ]


def test_json_has_the_same():
    told = json.loads(json.dumps(tree(FOUND)))
    assert told["can_plan"] is True
    assert told["findings"][1] == {
        "section": "More commands",
        "level": "missing",
        "subject": "onnx",
        "text": "onnx is not installed",
        "serves": "compile MODEL.onnx",
        "fix": "pip install x",
    }
