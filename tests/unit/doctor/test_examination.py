import pytest

from anatune.doctor import examination, packages
from anatune.doctor.examination import examine
from anatune.doctor.findings import can_plan, verdict
from anatune.doctor.trials import IS_TRIED
from anatune.requirements import Need, pip_line

ASKED = {
    "": [Need("numba", ">=0.61"), Need("pandas", ">=2"), Need("typer", "")],
    "tvm": [Need("apache-tvm", "==0.27"), Need("apache-tvm-ffi", "==0.1.14.post1")],
    "metaschedule": [Need("apache-tvm", "==0.27"), Need("psutil", ">=5")],
    "onnx": [Need("onnx", ">=1.16")],
    "pycuda": [Need("pycuda", ">=2020.1")],
    "new": [Need("something", "")],
    "dev": [Need("pytest", "")],
}
PLANNED = {"*planning": None, "specs": 60, "compiled": True}


@pytest.fixture
def look(monkeypatch):
    """Examine an installation of `versions`, where trials tell `told`; return findings by subject."""

    def run(versions, told, *, imports=True):
        for module in (examination, packages):
            monkeypatch.setattr(module, "version_of", {"anatune": examination.__version__, **versions}.get)
        monkeypatch.setattr(examination, "needs", lambda: ASKED)
        monkeypatch.setattr(examination, "module_of", lambda name: name)
        asked = {}

        def answer(trials):
            asked.update(trials)
            return {name: told.get(name, {}) for name in trials}

        monkeypatch.setattr(examination, "run_trials", answer)
        findings = examine(imports=imports)
        run.asked = asked
        run.all = findings
        return {finding.subject: finding for finding in findings}

    return run


CORE = {"numba": "0.68", "pandas": "2.1", "typer": "1"}
TVM = {"apache-tvm": "0.27", "apache-tvm-ffi": "0.1.14.post1"}


def test_a_bare_installation_plans_and_names_what_is_missing(look):
    told = look(CORE, {"*planning": PLANNED})
    assert can_plan(look.all)
    assert told["planning"].level == "ok"
    assert told["tvm"].level == "missing"
    assert told["tvm"].text.endswith("apache-tvm, apache-tvm-ffi are not installed")
    assert told["onnx"].fix == pip_line("onnx")
    assert told["new"].level == "missing"
    assert "dev" not in told
    assert "missing for some commands: tvm, onnx, metaschedule, new" in verdict(look.all)


def test_pycuda_is_told_and_lacked_by_no_command(look):
    told = look(CORE, {"*planning": PLANNED})
    assert told["pycuda"].level == "note"
    assert told["pycuda"].text.endswith("pycuda is not installed; cuda-bindings (extra cuda) does the same")
    assert "pycuda" not in verdict(look.all)
    assert look(CORE | {"pycuda": "2026.1"}, {"*planning": PLANNED})["pycuda"].level == "ok"


def test_what_cannot_be_imported_is_broken(look):
    versions = CORE | TVM | {"psutil": "6", "onnx": "1.16"}
    died = {"onnx": IS_TRIED, "died": "it died of SIGSEGV"}
    tvm = {"apache-tvm": "OSError: no library", "apache-tvm-ffi": None, "*tvm": None}
    told = look(versions, {"*planning": PLANNED, "tvm": tvm, "onnx": died})
    assert [told[name].level for name in ("tvm", "metaschedule", "onnx")] == ["broken"] * 3
    assert "apache-tvm cannot be imported (OSError: no library)" in told["metaschedule"].text
    assert "onnx cannot be imported (it died of SIGSEGV)" in told["onnx"].text
    assert look.asked["metaschedule"] == ["psutil"]  # each is tried once
    assert can_plan(look.all)


def test_a_version_that_is_known_to_break(look):
    told = look(CORE | {"apache-tvm": "0.27", "apache-tvm-ffi": "0.1.15.post2"}, {"*planning": PLANNED})
    assert told["tvm"].level == "broken"
    assert "0.1.15.post2 crashes in tvm.ir.save_json" in told["tvm"].text
    assert told["tvm"].fix == pip_line("tvm")


def test_quick_imports_no_extra(look):
    told = look(CORE | TVM, {"*planning": PLANNED}, imports=False)
    assert set(look.asked) == {"", "*planning", "*gpu"}
    assert told["tvm"].level == "ok"
    assert "not tried" in told["tvm"].text


def test_what_keeps_anatune_from_planning_is_an_error(look):
    reason = {"*planning": "ImportError: numba needs NumPy 2.4 or less"}
    told = look(CORE, {"*planning": reason, "": {"numba": "needs NumPy 2.4 or less"}})
    assert not can_plan(look.all)
    assert told["numba"].level == told["planning"].level == "error"
    assert verdict(look.all).startswith("anatune cannot plan")


def test_a_package_that_plans_do_without(look):
    told = look(CORE | {"pandas": "1.0"}, {"*planning": PLANNED})
    assert (told["pandas"].level, told["pandas"].serves) == ("broken", "anatune.predict, Plan.to_frame")
    assert told["pandas"].fix == "pip install 'pandas>=2'"
    told = look(CORE, {"*planning": PLANNED, "": {"typer": "no", "pandas": "no numpy"}})
    assert told["typer"].level == "error"  # the command line is typer's
    assert told["pandas"].fix == "pip install --force-reinstall pandas"


def test_a_damaged_spec_of_the_users_is_told(look):
    told = look(CORE, {"*planning": PLANNED | {"specs": "my.toml: no TOML"}})
    assert (told["specs"].level, told["specs"].text) == ("broken", "my.toml: no TOML")


def test_another_copy_that_comes_first(look):
    assert look(CORE | {"anatune": "0.0.1"}, {"*planning": PLANNED})["anatune"].level == "warning"
