"""Job scripts that start workers; Slurm itself is not here, bash runs the script in its place."""

import re
import shlex
import subprocess
import sys

import pytest

from anatune.errors import SecurityError, SpaceError

jobqueue = pytest.importorskip("dask_jobqueue", reason="pip install dask-jobqueue")
distributed = pytest.importorskip("distributed", reason="pip install '.[cluster]'")
pytest.importorskip("cryptography", reason="pip install '.[cluster]'")

from anatune.adapters.jobqueue import queue_cluster  # noqa: E402
from tests.certificates import make_certificates  # noqa: E402
from tests.wording import refuses  # noqa: E402

NODE = {"cores": 8, "memory": "32GB"}


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("shared") / "tls")


def test_the_job_script_of_slurm(tls):
    with queue_cluster(
        jobqueue.SLURMCluster, tls, device="host_gpu", builders=6, queue="gpu", account="lab", walltime="08:00:00",
        job_extra_directives=["--gres=gpu:1"], job_script_prologue=["module load cuda"], **NODE,
    ) as cluster:  # fmt: skip
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        script = cluster.job_script()
    lines = script.splitlines()
    assert lines[0].startswith("#!/")
    for directive in ("-p gpu", "-A lab", "-t 08:00:00", "--cpus-per-task=8", "--mem=30G", "--gres=gpu:1", "-n 1"):
        assert f"#SBATCH {directive}" in lines, script
    assert lines.index("module load cuda") > max(number for number, line in enumerate(lines) if "#SBATCH" in line)
    # of dask-jobqueue's own command nothing is left: `anatune worker` has other options
    assert shlex.split(lines[-1]) == [
        "exec", sys.executable, "-m", "anatune", "worker", address, "--name", "dummy-name", "--device", "host_gpu",
        "--builders", "6", "--tls", str(tls),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["PBSCluster", "SGECluster", "LSFCluster", "MoabCluster", "HTCondorCluster"])
def test_other_queues(tls, kind):
    options = NODE | ({"disk": "1GB"} if kind == "HTCondorCluster" else {})
    with queue_cluster(getattr(jobqueue, kind), tls, build_only=True, **options) as cluster:
        assert re.search(r"-m anatune worker tls://\S+ --name dummy-name --build-only --tls \S+", cluster.job_script())
        scheduler = cluster.scheduler
        assert scheduler.security.require_encryption
        assert scheduler.http_server.address == "127.0.0.1"


def test_what_is_no_queue(tls, tmp_path):
    for kind in (distributed.LocalCluster, "slurm", None):
        with refuses(SpaceError):
            queue_cluster(kind, tls, **NODE)
    with refuses(SpaceError):
        queue_cluster(jobqueue.SLURMCluster, tls, processes=2, **NODE)
    with refuses(SecurityError):
        queue_cluster(jobqueue.SLURMCluster, tmp_path / "none", **NODE)


def test_a_job_joins(tls, tmp_path):
    """What Slurm would run, run by bash: the worker joins under the name that the cluster knows the job by."""
    with queue_cluster(jobqueue.SLURMCluster, tls, build_only=True, builders=1, **NODE) as cluster:
        script = tmp_path / "job.sh"
        script.write_text(cluster.job_script())
        with subprocess.Popen(["bash", str(script)], stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr.readline().startswith("dummy-name joined tls://")
                with distributed.Client(cluster, set_as_default=False) as client:
                    (one,) = client.scheduler_info()["workers"].values()
                    assert (one["name"], one["resources"]) == ("dummy-name", {"build": 1})
            finally:
                process.terminate()
                assert process.wait(60) == 0
