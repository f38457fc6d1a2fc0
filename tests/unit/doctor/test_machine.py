import os

import pytest

from anatune.doctor import machine
from anatune.doctor.machine import compiler_findings, gpu_findings, machine_findings
from anatune.requirements import pip_line


def put(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(root, **told):
    return {finding.subject: finding for finding in machine_findings(told, root)}


def test_a_quiet_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    put(tmp_path, sys__devices__system__cpu__cpu0__cpufreq__scaling_governor="performance\n")
    told = found(tmp_path)
    assert told["cores"].level == "ok"
    assert told["cores"].text.startswith("4 of 4 logical processors can be used")
    assert told["clock"].level == "ok"
    assert "turbo" not in told


def test_what_makes_times_jump_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    cpu = tmp_path / "sys/devices/system/cpu"
    for index, governor in enumerate(("powersave", "schedutil")):
        (cpu / f"cpu{index}/cpufreq").mkdir(parents=True)
        (cpu / f"cpu{index}/cpufreq/scaling_governor").write_text(f"{governor}\n")
    (cpu / "intel_pstate").mkdir()
    (cpu / "intel_pstate/no_turbo").write_text("0\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("150000 100000\n")
    told = found(tmp_path)
    assert (told["cores"].level, told["clock"].level) == ("warning", "warning")
    assert "quota of 1.5 of them" in told["cores"].text
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/docker/a\n")
    (tmp_path / "sys/fs/cgroup/docker/a").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/docker/a/cpu.max").write_text("50000 100000\n")
    assert "quota of 0.5 of them" in found(tmp_path)["cores"].text
    assert "powersave, schedutil" in told["clock"].text
    assert told["clock"].fix.endswith("performance")
    assert told["turbo"].text.startswith("on: ")


def test_the_processor(tmp_path):
    assert found(tmp_path, cpu="Xeon (znver4, avx512)")["CPU"].text == "Xeon (znver4, avx512)"
    no = found(tmp_path, **{"cpu": None, "no cpu": "no /proc/cpuinfo"})["CPU"]
    assert (no.level, no.text) == ("warning", "cannot be detected: no /proc/cpuinfo")
    assert "CPU" not in found(tmp_path)  # planning was not tried to its end


def test_a_process_on_one_core_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert found(tmp_path)["cores"].level == "warning"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="counters are Linux's")
def test_counters(tmp_path):
    assert found(tmp_path)["performance counters"].text.startswith("none")
    assert found(tmp_path)["energy counter"].text.startswith("none")
    (tmp_path / "sys/bus/event_source/devices/cpu").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/perf_event_paranoid").write_text("2\n")
    (tmp_path / "sys/class/powercap/intel-rapl:0").mkdir(parents=True)
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("1\n")
    assert found(tmp_path)["energy counter"].fix.endswith("intel-rapl:0/energy_uj")  # the others are missing
    (tmp_path / "sys/class/powercap/intel-rapl:0/name").write_text("package-0\n")
    (tmp_path / "sys/class/powercap/intel-rapl:0/max_energy_range_uj").write_text("262143328850\n")
    assert "perf_event_paranoid 2" in found(tmp_path)["performance counters"].text
    assert found(tmp_path)["energy counter"].level == "ok"


def test_compilers_that_are_missing_or_broken(tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 4\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    told = {finding.subject: finding for finding in compiler_findings()}
    assert (told["C compiler"].level, told["C++ compiler"].level) == ("broken", "missing")
    assert told["C++ compiler"].text == "none found (g++, clang++, c++)"
    assert "apt install g++" in told["C++ compiler"].fix
    assert "compile" in told["C compiler"].serves  # TVM links with either
    assert told["C++ compiler"].serves == "anatune.verify of GPU kernels"


@pytest.mark.parametrize(
    ("told", "level", "words"),
    [
        ({"*gpu": "no NVIDIA driver (libcuda.so.1 cannot be loaded)"}, "note", "none: no NVIDIA driver"),
        ({"*gpu": "is tried", "died": "it died of SIGSEGV"}, "note", "none: it died of SIGSEGV"),
        ({"*gpu": None, "driver": "12.4", "devices": []}, "note", "the driver (CUDA 12.4) finds none"),
        ({"*gpu": None, "driver": "13.0", "devices": ["H200", "A30", "H200"]}, "ok", "2 x H200, 1 x A30, driver for"),
    ],
)
def test_gpus(told, level, words):
    finding, *others = gpu_findings(told, None)
    assert [one.subject for one in others] in ([], ["NVML"])
    assert (finding.level, finding.text[: len(words)]) == (level, words)


def test_gpus_of_both_vendors():
    amd, nvidia = gpu_findings({"*gpu": "no NVIDIA driver", "amd": ["MI300X", "MI300X"]}, None)
    assert (amd.level, amd.text) == ("ok", "2 x MI300X, through HIP")
    assert (nvidia.level, nvidia.subject) == ("note", "GPU")


def test_the_compiler_of_cuda_c():
    good = {"*compiler": None, "version": "NVRTC 12.9", "archs": "sm_50 to sm_121"}
    assert next(machine.gpu_findings({}, good)).text == "NVRTC 12.9 compiles for sm_50 to sm_121"
    bad = next(machine.gpu_findings({}, {"*compiler": "the compiler NVRTC cannot be loaded (no library); install it"}))
    assert (bad.level, bad.text) == ("broken", "the compiler NVRTC cannot be loaded (no library)")
    assert bad.fix == pip_line("cuda")
