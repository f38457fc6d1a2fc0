"""What a process may use: cores within the quotas of its control groups."""

import os

import pytest

from anatune.resources import allowed_cores, cpu_quota, usable_cores

NO_QUOTA = "max 100000"
V1 = "12:cpuset:/\n4:cpu,cpuacct:{}\n1:name=systemd:/\n0::/\n"


def root_of(tmp_path, cgroup, files):
    if cgroup is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return tmp_path


def quota_of_v1(folder, quota, period=100000):
    return {f"{folder}/cpu.cfs_quota_us": str(quota), f"{folder}/cpu.cfs_period_us": str(period)}


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        (None, {}, None),
        ("", {}, None),
        ("nonsense", {"cpu.max": "100000 100000"}, 1.0),
        ("0::/", {"cpu.max": NO_QUOTA}, None),
        (None, {"cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"cpu.max": "400000 100000"}, 4.0),  # a container sees itself as the top
        ("0::/user.slice/a.scope\n", {"user.slice/a.scope/cpu.max": "50000 100000"}, 0.5),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": NO_QUOTA}, 2.0),
        ("0::/a/b\n", {"a/cpu.max": NO_QUOTA, "a/b/cpu.max": "300000 200000", "a/b/c/cpu.max": "1 100000"}, 1.5),
        ("0::/a/b\n", {"cpu.max": "700000 100000", "a/cpu.max": "300000 100000", "a/b/cpu.max": "500000 100000"}, 3.0),
        ("0::/host/path/of/it\n", {"cpu.max": "250000 100000"}, 2.5),  # of the host's, which a container does not see
        ("0::/../../elsewhere\n", {"cpu.max": "100000 100000"}, 1.0),
        ("0::/a:b\n", {"a:b/cpu.max": "100000 100000"}, 1.0),
        ("0::/\n", {"cpu.max": "0 100000"}, None),
        ("0::/\n", {"cpu.max": "100000 0"}, None),
        ("0::/\n", {"cpu.max": "100000"}, None),
        ("0::/\n", {"cpu.max": "x y"}, None),
        (V1.format("/"), quota_of_v1("cpu,cpuacct", 200000), 2.0),
        (V1.format("/docker/x"), quota_of_v1("cpu,cpuacct/docker/x", 150000), 1.5),
        (V1.format("/docker/x"), quota_of_v1("cpu", 350000), 3.5),  # the mount's other name, in a container
        (V1.format("/p/q"), {**quota_of_v1("cpu/p/q", -1), **quota_of_v1("cpu/p", 100000, 50000)}, 2.0),
        (V1.format("/"), quota_of_v1("cpu,cpuacct", -1), None),
        (V1.format("/"), {"cpu/cpu.cfs_quota_us": "100000"}, None),
        (V1.format("/"), quota_of_v1("cpuset", 100000), None),
    ],
)
def test_quotas(tmp_path, cgroup, files, quota):
    assert cpu_quota(root_of(tmp_path, cgroup, files)) == quota


@pytest.mark.parametrize(
    ("quota", "allowed", "cores"),
    [
        ("max", 8, 8),
        (800, 8, 8),
        (1600, 8, 8),
        (799, 8, 7),
        (400, 8, 4),
        (150, 8, 1),
        (50, 8, 1),
        (250, 2, 2),
        (400, 1, 1),
    ],
)
def test_cores_to_keep_busy(tmp_path, monkeypatch, quota, allowed, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    text = "max 100000" if quota == "max" else f"{quota}000 100000"
    assert allowed_cores() == allowed
    assert usable_cores(root_of(tmp_path, "0::/\n", {"cpu.max": text})) == cores


def test_systems_without_affinity(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores(tmp_path) == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1
