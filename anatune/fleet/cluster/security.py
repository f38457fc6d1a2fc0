"""Who may talk to whom: a plain connection stays on the loopback, beyond it there are certificates.

Whoever reaches a Dask scheduler or worker can run any program there. Dask's own ``require_encryption`` refuses to
listen, to connect and to be connected without TLS; it is off unless asked for. Two more doors stand open by default,
whatever it says: a worker without a host listens on all interfaces, also one of a scheduler on the loopback, and every
scheduler and worker has a web server on all interfaces, with or without a dashboard. `server_options` closes both.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import socket
import ssl
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict

from anatune.arguments import shown
from anatune.errors import DeviceError, SecurityError
from anatune.files import reason
from anatune.fleet.cluster.certificates import read_certificates
from anatune.named import import_optional

if TYPE_CHECKING:
    from distributed import Client, Security

DEFAULT_PORT = 8786
"""Dask's."""
_WEB_ADDRESS = "127.0.0.1:0"
_TIMEOUT_S = 10.0
_ADDRESS = re.compile(
    r"(?:(?P<scheme>[a-z]+)://)?(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[^\s/:\[\]]+)(?::(?P<port>[0-9]{1,5}))?/?"
)
_START = "`anatune cluster scheduler` starts one"
_LOUD = ("distributed", "distributed.client", "distributed.comm", "tornado", "tornado.application")

_LOG = logging.getLogger(__name__)


class Identity(TypedDict):
    """What a server of Dask's says of itself, as far as it is looked at; of a scheduler: its workers, too."""

    type: str
    address: str
    workers: dict[str, dict[str, object]]


def import_distributed() -> ModuleType:
    """Return the package distributed; where nobody imported it before, its loggers keep quiet from now on.

    What goes wrong is said by anatune, in one line; Dask says it besides, in twenty.

    Raises
    ------
    MissingDependencyError
        It is not installed.
    """
    first = "distributed" not in sys.modules
    package = import_optional("distributed", "cluster", "tuning on a cluster")
    if first:
        for name in _LOUD:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return package


def security_of(folder: str | os.PathLike[str]) -> Security:
    """Return what Dask's scheduler, workers and clients need to speak TLS, and only that, with a folder's certificates.

    Raises
    ------
    SecurityError
        The certificates cannot be used (`read_certificates`).
    MissingDependencyError
        distributed or cryptography is not installed.
    """
    package = import_distributed()
    found = read_certificates(folder)
    files = {
        f"tls_{role}_{kind}": str(path.absolute())
        for role in ("client", "scheduler", "worker")
        for kind, path in (("cert", found.certificate), ("key", found.key))
    }
    security: Security = package.Security(
        require_encryption=True,
        tls_ca_file=str(found.authority.absolute()),
        tls_min_version=ssl.TLSVersion.TLSv1_2,
        **files,
    )
    return security


def cluster_address(address: object, tls: object = None) -> str:
    """Return the address of a scheduler for Dask: ``tls://HOST:PORT`` with certificates, ``tcp://IP:PORT`` without.

    Parameters
    ----------
    address : str
        HOST, HOST:PORT, tcp://... or tls://...; the port is 8786 if there is none.
    tls : path, optional
        The folder of certificates; without, the host has to be of the loopback.

    Raises
    ------
    SecurityError
        It is no address, it is one of another machine and there are no certificates, or the two contradict each other.
    DeviceError
        The host's name is not known.
    """
    host, port, scheme = _parts(address)
    if tls is not None:
        if scheme == "tcp":
            raise SecurityError(
                f"cluster: {address} asks for a plain connection, and there are certificates ({tls}); write "
                f"tls://{_joined(host, port)}"
            )
        return f"tls://{_joined(host, port)}"
    if scheme == "tls":
        raise SecurityError(
            f"cluster: {address} speaks TLS, which needs certificates: --tls DIR, in Python tls=DIR, with the folder "
            "that the scheduler was started with"
        )
    for found in _resolved(host, port):
        if not is_loopback(found):
            raise SecurityError(
                f"cluster: {_joined(host, port)} is beyond this machine's loopback, where whoever can connect can run "
                "programs as you: make certificates in a folder DIR (docs/howto/fleets.md), copy DIR to all machines, "
                "and name it with --tls DIR (in Python tls=DIR)"
            )
        host = found
    return f"tcp://{_joined(host, port)}"


def check_client(client: Client) -> None:
    """Raise SecurityError if somebody's own client talks beyond the loopback without TLS."""
    address = str(client.scheduler.address) if client.scheduler is not None else ""
    scheme, _, rest = address.partition("://")
    if scheme in ("tls", "wss", "inproc", "") or is_loopback(rest.rpartition(":")[0].strip("[]")):
        return
    raise SecurityError(
        f"cluster: the client talks to {address} without TLS, beyond the loopback; make the cluster and the client "
        "with security=anatune.fleet.cluster.security.security_of(DIR), a folder of certificates (docs/howto/fleets.md)"
    )


def server_options(address: str, tls: object = None) -> dict[str, object]:
    """Return keywords of `distributed.Scheduler`, `Worker` and `Nanny` that let in only those who may come in.

    Parameters
    ----------
    address : str
        Of the scheduler, as `cluster_address` returns it.
    tls : path, optional
        The folder of certificates.

    Raises
    ------
    SecurityError
        As `security_of`.
    """
    package = import_distributed()
    options: dict[str, object] = {"dashboard": False, "dashboard_address": _WEB_ADDRESS}
    if tls is not None:
        return {**options, "protocol": "tls://", "security": security_of(str(tls))}
    plain = package.Security(require_encryption=False)
    return {**options, "protocol": "tcp://", "security": plain, "host": _bracketed(_parts(address)[0])}


def is_loopback(host: str) -> bool:
    """Whether a numeric address is of the loopback; names are not, whatever they stand for."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def connect(address: object, tls: object = None, *, timeout_s: float = _TIMEOUT_S) -> Client:
    """Return a client of a scheduler; it is nobody's default, and closing it is the caller's.

    Parameters
    ----------
    address : str
        As `cluster_address` takes it.
    tls : path, optional
        The folder of certificates.
    timeout_s : float
        How long the scheduler may take to answer, s.

    Raises
    ------
    SecurityError
        The address or the certificates are refused here, or by the other side.
    DeviceError
        Nothing answers there, or something that is no scheduler.
    MissingDependencyError
        distributed or cryptography is not installed.
    """
    package = import_distributed()
    place, security, _ = _asked(address, tls, timeout_s)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            client: Client = package.Client(place, security=security, timeout=timeout_s, set_as_default=False)
        except (OSError, ImportError) as error:  # gone since, or versions that cannot talk to each other
            raise DeviceError(f"{place}: {' '.join(str(error).split())}") from None
    for warning in said:
        if "version" in type(warning.message).__name__.lower():
            _LOG.warning("%s: the scheduler or a worker has other versions of Python packages than this machine", place)
    return client


def scheduler_identity(address: object, tls: object = None, *, timeout_s: float = _TIMEOUT_S) -> Identity:
    """Return what a scheduler says of itself and its workers, in Dask's form; parameters and errors as `connect`."""
    return _asked(address, tls, timeout_s)[2]


def _asked(address: object, tls: object, timeout_s: float) -> tuple[str, Security, Identity]:
    """Return the address of a scheduler that answers, what connections to it need, and what it says of itself."""
    package = import_distributed()
    place = cluster_address(address, tls)
    security = package.Security(require_encryption=False) if tls is None else security_of(str(tls))
    arguments = {} if tls is None else security.get_connection_args("client")
    _reach(place, arguments.get("ssl_context"), tls, timeout_s)
    said = _identity(place, arguments, tls, timeout_s)
    if said["type"] != "Scheduler":
        raise DeviceError(f"{place}: is a Dask {str(said['type']).lower()}, expected the scheduler's address")
    return place, security, said


def _parts(address: object) -> tuple[str, int, str]:
    """Return host, port and scheme ("" if there is none) of an address."""
    match = _ADDRESS.fullmatch(address.strip()) if isinstance(address, str) else None
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or (match["scheme"] or "tcp") not in ("tcp", "tls") or not 0 < port < 65536:
        raise SecurityError(
            f"cluster: the address is {shown(address)}, expected HOST:PORT, tls://HOST:PORT or tcp://127.0.0.1:PORT "
            f"of a Dask scheduler"
        )
    return match["host"].strip("[]"), port, match["scheme"] or ""


def _joined(host: str, port: int) -> str:
    return f"{_bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _resolved(host: str, port: int) -> list[str]:
    """Return the numeric addresses of a host, those of version 4 last: the last one is taken."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise DeviceError(
            f"cluster: this machine knows no host {host}; look at the name, or write an address"
        ) from None
    last_first = sorted(found, key=lambda entry: entry[0] != socket.AF_INET6)
    return [str(place[0]) for *_, place in last_first]


def _reach(place: str, context: ssl.SSLContext | None, tls: object, timeout_s: float) -> None:
    """Raise DeviceError or SecurityError unless something listens at an address that may be a scheduler.

    Without Dask, which tries refused connections again until the time is up, and loses what TLS says of them.
    """
    host, port, _ = _parts(place)
    _resolved(host, port)
    try:
        stream = socket.create_connection((host, port), timeout=timeout_s)
    except TimeoutError:
        raise DeviceError(
            f"{place}: does not answer within {timeout_s:g} s; is it the right machine, and does a firewall let port "
            f"{port} through?"
        ) from None
    except ConnectionRefusedError:
        raise DeviceError(f"{place}: nothing listens there; is that the scheduler's port? {_START}") from None
    except OSError as error:
        raise DeviceError(f"{place}: cannot be reached: {reason(error)}") from None
    if context is None:
        stream.close()
        return
    try:
        with stream, context.wrap_socket(stream) as talk:
            if not talk.recv(1):  # Dask's servers speak first; that they refuse a certificate comes then, too
                raise _no_scheduler(place, tls)
    except ssl.SSLCertVerificationError as error:
        if "expired" in str(error):
            raise SecurityError(f"{place}: its certificate has expired; start it anew with a new set") from None
        raise SecurityError(
            f"{place}: its certificate is not of the authority in {Path(str(tls)) / 'ca.pem'}; copy the folder that "
            "the scheduler was started with"
        ) from None
    except ssl.SSLError as error:
        if "ALERT" in str(error.reason) and any(word in str(error.reason) for word in ("_CA", "CERT")):
            raise SecurityError(
                f"{place}: refuses the certificate in {tls} ({error.reason}); copy the scheduler's folder"
            ) from None
        raise _no_scheduler(place, tls) from None
    except OSError:
        raise _no_scheduler(place, tls) from None


def _no_scheduler(place: str, tls: object) -> DeviceError:
    if tls is None:
        return DeviceError(
            f"{place}: what listens there is no Dask scheduler, or one that takes only TLS; look at the port, or name "
            "its certificates with --tls DIR"
        )
    return DeviceError(
        f"{place}: what listens there is no Dask scheduler, or one that speaks no TLS; look at the port, or start it "
        f"with `anatune cluster scheduler --tls {tls}`"
    )


def _identity(place: str, arguments: dict[str, object], tls: object, timeout_s: float) -> Identity:
    """Return what the Dask server at an address says of itself: its "type" is "Scheduler", "Worker", "Nanny".

    Asked for in a thread with an event loop of its own: Dask's client waits without end for a server that takes a
    connection and then says nothing, and a notebook's thread has a loop already.
    """
    comms = import_optional("distributed.comm", "cluster", "tuning on a cluster")

    async def ask() -> Identity:
        comm = await comms.connect(place, timeout=timeout_s, **arguments)
        try:
            await comm.write({"op": "identity", "reply": True})
            said: Identity = await comm.read()
            said["type"]  # whatever answers without one is no server of Dask's
            return said
        finally:
            comm.abort()

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: asyncio.run(asyncio.wait_for(ask(), timeout_s)))
        if asked.exception() is not None:  # of any kind: what is no Dask may send anything
            raise _no_scheduler(place, tls)
    return asked.result()
