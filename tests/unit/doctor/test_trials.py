import ctypes
import sys

import pytest

from anatune.doctor.trials import IS_TRIED, TRIALS, run_trials

MODULES = {
    "tried_good": "print('hello'); x = 1",
    "tried_raising": "raise RuntimeError('\\n  no such\\nlibrary')",
    "tried_without": "import tried_none",
    "tried_exiting": "raise SystemExit(3)",
    "tried_crashing": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "tried_sleeping": "import time; time.sleep(60)",
}


@pytest.fixture
def modules(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])


@pytest.mark.usefixtures("modules")
def test_whatever_a_module_does_is_told():
    told = run_trials(
        {
            "one": ["tried_good", "tried_raising", "tried_without", "tried_exiting", "json"],
            "two": ["tried_good", "tried_crashing", "json"],
        }
    )
    assert told["one"] == {
        "tried_good": None,
        "tried_raising": "RuntimeError: no such",
        "tried_without": "No module named 'tried_none'",
        "tried_exiting": "SystemExit: 3",
        "json": None,
    }
    assert told["two"] == {"tried_good": None, "tried_crashing": IS_TRIED, "died": "it died of SIGSEGV"}


@pytest.mark.usefixtures("modules")
def test_a_trial_that_hangs_is_ended():
    assert run_trials({"": ["tried_sleeping"]}, 1.0)[""]["died"] == "it took longer than 1 s"


def test_planning_and_the_driver_are_tried(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    told = run_trials({"plan": ["*planning"], "gpu": ["*gpu"]})
    assert told["plan"]["compiled"] is True
    assert told["plan"]["points"] > 1000
    assert told["plan"]["*planning"] is None
    assert told["plan"]["cpu"] or told["plan"]["no cpu"]
    assert "devices" in told["gpu"] or "NVIDIA driver" in told["gpu"]["*gpu"]
    assert not list(tmp_path.iterdir())  # else the first plan would not say that it compiles


def test_hip_is_asked_for_amds_gpus(monkeypatch):
    class Hip:
        def __init__(self, name):
            if name != "libamdhip64.so":
                raise OSError(name)

        def hipInit(self, flags):
            return 0

        def hipGetDeviceCount(self, count):
            count._obj.value = 2
            return 0

        def hipDeviceGetName(self, text, size, index):
            text.value = f"MI{index}".encode()[: size - 1]
            return 0

    monkeypatch.setattr(ctypes, "CDLL", Hip)
    told = {}
    assert TRIALS["*gpu"](told.__setitem__).startswith("no NVIDIA driver")
    assert told == {"amd": ["MI0", "MI1"]}
