"""What is missing for a library is one line."""

import platform

import pytest

import anatune
from anatune.errors import BuildError

pytest.importorskip("tvm")
from anatune.export.cpu.write import write_c_library
from tests.wording import refuses


def schedule(device):
    return anatune.space(anatune.matmul(8, 8, 8), anatune.hardware(device)).schedule(tiles={})


def test_another_machines_library_needs_a_cross_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    arm, x86 = ("cortex_a72", "aarch64"), ("amd_ryzen_7950x", "x86_64")
    name, _ = x86 if platform.machine() in ("aarch64", "arm64") else arm
    with refuses(BuildError):
        write_c_library(schedule(name), "kernel", tmp_path, threads=1)
    assert not list(tmp_path.iterdir())


def test_a_machine_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    name = "cortex_a72" if platform.machine() in ("aarch64", "arm64") else "amd_ryzen_7950x"
    with refuses(BuildError):
        write_c_library(schedule(name), "kernel", tmp_path, threads=1)
