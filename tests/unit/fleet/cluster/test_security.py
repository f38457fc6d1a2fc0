"""Who may talk to whom, against real schedulers, workers, and what else listens on a port."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading

import pytest

from anatune.errors import DeviceError, MissingDependencyError, SecurityError
from anatune.fleet.cluster.security import check_client, cluster_address, connect, security_of, server_options
from tests.certificates import make_certificates
from tests.wording import refuses

distributed = pytest.importorskip("distributed", reason="pip install '.[cluster]'")
pytest.importorskip("cryptography", reason="pip install '.[cluster]'")

NOBODY = "192.0.2.1"
"""An address of nobody's, for documents (RFC 5737)."""


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def other_tls(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls") / "others")


@contextlib.contextmanager
def serving(make):
    """Run Dask servers in a thread with a loop of its own; yields what `make`, an async context manager, yields."""
    loop, started, found = asyncio.new_event_loop(), threading.Event(), []

    async def run():
        stop = asyncio.Event()
        try:
            async with make() as servers:
                found.extend([servers, stop])
                started.set()
                await stop.wait()
        finally:
            started.set()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    started.wait(60)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(found[1].set)
        thread.join(60)
        loop.close()


def scheduler(tls=None, workers=0):
    @contextlib.asynccontextmanager
    async def make():
        place = cluster_address("127.0.0.1", tls)
        async with contextlib.AsyncExitStack() as stack:
            options = {"host": "127.0.0.1", **server_options(place, tls)}
            server = await stack.enter_async_context(distributed.Scheduler(port=0, **options))
            made = [distributed.Worker(server.address, nthreads=1, **options) for _ in range(workers)]
            for worker in made:
                await stack.enter_async_context(worker)
            yield server, made

    return serving(make)


@pytest.fixture(scope="module")
def plain():
    with scheduler(workers=1) as (server, workers):
        yield server, workers[0]


@pytest.fixture(scope="module")
def secure(tls):
    with scheduler(tls, workers=1) as (server, workers):
        yield server, workers[0]


@pytest.mark.parametrize(
    ("address", "tls", "expected"),
    [
        ("127.0.0.1:1", None, "tcp://127.0.0.1:1"),
        ("localhost", None, "tcp://127.0.0.1:8786"),
        (" tcp://127.0.0.2:8786/ ", None, "tcp://127.0.0.2:8786"),
        ("[::1]:9", None, "tcp://[::1]:9"),
        ("gpu1.lab:9", "dir", "tls://gpu1.lab:9"),
        ("tls://gpu1.lab", "dir", "tls://gpu1.lab:8786"),
        ("tls://[fd00::1]:7", "dir", "tls://[fd00::1]:7"),
        (f"{NOBODY}:7", "dir", f"tls://{NOBODY}:7"),
    ],
)
def test_addresses(address, tls, expected):
    assert cluster_address(address, tls) == expected


@pytest.mark.parametrize(
    ("address", "tls"),
    [
        ("", None),
        (None, None),
        ("http://127.0.0.1:8786", None),
        ("ucx://127.0.0.1:8786", None),
        ("127.0.0.1:0", None),
        ("127.0.0.1:99999", None),
        ("127.0.0.1:x", None),
        ("a b:1", "dir"),
        ("fd00::1", "dir"),
        (f"{NOBODY}:8786", None),
        (f"tcp://{NOBODY}:8786", None),
        ("0.0.0.0:8786", None),
        ("tls://127.0.0.1:8786", None),
        (f"tcp://{NOBODY}:8786", "dir"),
    ],
)
def test_addresses_that_are_refused(address, tls):
    with refuses(SecurityError) as caught:
        cluster_address(address, tls)
    assert "\n" not in str(caught.value)


def test_a_name_that_nobody_knows():
    with refuses(DeviceError):
        connect("nowhere.invalid:1")


def test_a_name_that_nobody_knows_with_certificates(tls):
    with refuses(DeviceError):
        connect("nowhere.invalid:1", tls)


def test_servers_of_the_loopback_listen_nowhere_else(plain):
    for server in plain:
        assert server.listener.listen_address.startswith("tcp://127.0.0.1:")
        assert server.http_server.address == "127.0.0.1"


def test_servers_with_certificates_take_nothing_else(secure):
    for server in secure:
        assert server.security.require_encryption
        assert server.address.startswith("tls://")
        assert server.http_server.address == "127.0.0.1"


@pytest.mark.parametrize("kind", ["plain", "secure"])
def test_a_client_works(request, kind, tls):
    server, _ = request.getfixturevalue(kind)
    with connect(server.address, tls if kind == "secure" else None) as client:
        assert client.submit(sum, (20, 22)).result(timeout=60) == 42
        check_client(client)
    with refuses(ValueError):
        distributed.client.default_client()


def test_a_client_inside_of_a_running_loop(plain):
    """As in a notebook."""

    async def main():
        with connect(plain[0].address) as client:
            return client.scheduler_info()["type"]

    assert asyncio.run(main()) == "Scheduler"


def refused(error, words, *arguments):
    with refuses(error) as caught:
        connect(*arguments, timeout_s=5.0)
    assert "\n" not in str(caught.value)


def test_a_worker_is_no_scheduler(plain, secure, tls):
    refused(DeviceError, "is a Dask worker, expected the scheduler's address", plain[1].address)
    refused(DeviceError, "is a Dask worker", secure[1].address, tls)


def test_another_authority(secure, other_tls):
    refused(SecurityError, r"its certificate is not of the authority in .*others/ca\.pem", secure[0].address, other_tls)


def test_the_other_side_refuses(tls, other_tls):
    """A scheduler whose certificate is fine and that trusts another authority."""
    files = {"cert": str(tls / "cert.pem"), "key": str(tls / "key.pem")}
    options = {f"tls_scheduler_{kind}": path for kind, path in files.items()}
    security = distributed.Security(require_encryption=True, tls_ca_file=str(other_tls / "ca.pem"), **options)
    with serving(
        lambda: distributed.Scheduler(
            host="127.0.0.1", port=0, protocol="tls://", security=security, dashboard_address="127.0.0.1:0"
        )
    ) as server:
        refused(SecurityError, r"refuses the certificate in .*ours", server.address, tls)


def test_plain_to_tls_and_back(plain, secure, tls):
    refused(DeviceError, "takes only TLS.*--tls DIR", secure[0].address.replace("tls:", "tcp:"))
    refused(DeviceError, "or one that speaks no TLS.*--tls", plain[0].address.replace("tcp:", "tls:"), tls)


def test_expired_ones(tmp_path, tls):
    old = make_certificates(tmp_path / "old", days=-1)
    with refuses(SecurityError):
        security_of(old)
    with refuses(SecurityError):
        connect("127.0.0.1:1", old)


def test_nothing_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        refused(DeviceError, "nothing listens there.*anatune cluster scheduler", f"127.0.0.1:{free.getsockname()[1]}")


@pytest.mark.parametrize("secure_side", [False, True])
@pytest.mark.parametrize("greeting", [None, b"SSH-2.0-OpenSSH_9.0\r\n", b"", b"\x00" * 64])
def test_something_else_listens(greeting, secure_side, tls):
    """One that says nothing, a greeting, a connection that is closed at once, zeros."""
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    taken.append(other.accept()[0])
                    if greeting:
                        taken[-1].sendall(greeting)
                    elif greeting is not None:
                        taken[-1].close()

        threading.Thread(target=serve, daemon=True).start()
        with refuses(DeviceError) as caught:
            connect(f"127.0.0.1:{other.getsockname()[1]}", tls if secure_side else None, timeout_s=1.0)
        assert "\n" not in str(caught.value)
        other.shutdown(socket.SHUT_RDWR)
    for one in taken:
        one.close()


def test_somebodys_own_client_is_looked_at():
    class Address:
        def __init__(self, address):
            self.scheduler = type("Scheduler", (), {"address": address})()

    for address in ("tls://10.0.0.1:1", "tcp://127.0.0.1:1", "tcp://[::1]:1", "inproc://10.0.0.1/1/2"):
        check_client(Address(address))
    with refuses(SecurityError):
        check_client(Address(f"tcp://{NOBODY}:1"))


def test_without_the_packages(monkeypatch, tls):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with refuses(MissingDependencyError):
        connect("127.0.0.1:1", tls)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with refuses(MissingDependencyError):
        connect("127.0.0.1:1")


def test_dask_is_quiet_where_anatune_imported_it_first():
    code = (
        "import logging; from anatune.fleet.cluster.security import import_distributed; import_distributed();"
        "print(logging.getLogger('distributed.worker').isEnabledFor(logging.ERROR))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
