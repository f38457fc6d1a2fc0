"""Security of clusters: connections without TLS are allowed on the loopback interface only.

Whoever can connect to a Dask scheduler or worker can run any program there. Dask's ``require_encryption`` refuses to
listen and to connect without TLS, but it is off by default. Two other defaults are unsafe in any case: a worker without
a host listens on all interfaces, even if its scheduler is on the loopback interface, and every scheduler and worker has
a web server on all interfaces, with or without a dashboard. `server_options` changes both.
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

from anatune.arguments import quote
from anatune.errors import DeviceError, SecurityError
from anatune.files import reason
from anatune.fleet.cluster.certificates import read_certificates
from anatune.named import import_optional

if TYPE_CHECKING:
    from distributed import Client, Security

DEFAULT_PORT = 8786
"""Dask's default port."""
_WEB_ADDRESS = "127.0.0.1:0"
_TIMEOUT_S = 10.0
_ADDRESS = re.compile(
    r"(?:(?P<scheme>[a-z]+)://)?(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[^\s/:\[\]]+)(?::(?P<port>[0-9]{1,5}))?/?"
)
_START = "`anatune cluster scheduler` starts one"
_LOUD = ("distributed", "distributed.client", "distributed.comm", "tornado", "tornado.application")

_LOG = logging.getLogger(__name__)


class Identity(TypedDict):
    """The part of a Dask server's identity that is read here; `workers` only for a scheduler."""

    type: str
    address: str
    workers: dict[str, dict[str, object]]


def import_distributed() -> ModuleType:
    """Return the package distributed, and silence its loggers if it was not imported before.

    anatune reports errors in one line, Dask would report the same errors in twenty.

    Raises
    ------
    MissingDependencyError
        The package is not installed.
    """
    first = "distributed" not in sys.modules
    package = import_optional("distributed", "cluster", "tuning on a cluster")
    if first:
        for name in _LOUD:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return package


def security_of(folder: str | os.PathLike[str]) -> Security:
    """Return the Security object with which Dask's scheduler, workers and clients use TLS only.

    Raises
    ------
    SecurityError
        The certificates cannot be used (`read_certificates`).
    MissingDependencyError
        distributed or cryptography is not installed.
    """
    package = import_distributed()
    certificates = read_certificates(folder)
    files = {
        f"tls_{role}_{kind}": str(path.absolute())
        for role in ("client", "scheduler", "worker")
        for kind, path in (("cert", certificates.certificate), ("key", certificates.key))
    }
    security: Security = package.Security(
        require_encryption=True,
        tls_ca_file=str(certificates.authority.absolute()),
        tls_min_version=ssl.TLSVersion.TLSv1_2,
        **files,
    )
    return security


def cluster_address(address: object, tls: object = None) -> str:
    """Return the address of a scheduler for Dask: ``tls://HOST:PORT`` with certificates, ``tcp://IP:PORT`` without.

    Parameters
    ----------
    address : str
        HOST, HOST:PORT, tcp://... or tls://...; the default port is 8786.
    tls : path, optional
        The folder of certificates. Without it, the host has to be on the loopback interface.

    Raises
    ------
    SecurityError
        The address is wrong, it is that of another machine and there are no certificates, or it contradicts `tls`.
    DeviceError
        The host's name is unknown.
    """
    host, port, scheme = _split_address(address)
    if tls is not None:
        if scheme == "tcp":
            raise SecurityError(
                f"cluster: {address} means a connection without TLS, but certificates are given ({tls}); write "
                f"tls://{_join_address(host, port)}"
            )
        return f"tls://{_join_address(host, port)}"
    if scheme == "tls":
        raise SecurityError(
            f"cluster: {address} uses TLS, which needs certificates; name the folder with which the scheduler was "
            "started with --tls DIR (in Python tls=DIR)"
        )
    for numeric_host in _resolve_host(host, port):
        if not is_loopback(numeric_host):
            raise SecurityError(
                f"cluster: {_join_address(host, port)} is not on this machine's loopback interface; who can connect "
                "can run programs as you; make certificates in a folder DIR (docs/howto/fleets.md), copy DIR to all "
                "machines, and name it with --tls DIR (in Python tls=DIR)"
            )
        host = numeric_host
    return f"tcp://{_join_address(host, port)}"


def check_client(client: Client) -> None:
    """Raise SecurityError if a caller's own client is connected to another machine without TLS."""
    address = str(client.scheduler.address) if client.scheduler is not None else ""
    scheme, _, rest = address.partition("://")
    if scheme in ("tls", "wss", "inproc", "") or is_loopback(rest.rpartition(":")[0].strip("[]")):
        return
    raise SecurityError(
        f"cluster: the client is connected to {address} without TLS, outside the loopback interface; make the cluster "
        "and the client with security=anatune.fleet.cluster.security.security_of(DIR), where DIR is a folder of "
        "certificates (docs/howto/fleets.md)"
    )


def server_options(address: str, tls: object = None) -> dict[str, object]:
    """Return secure keyword arguments for `distributed.Scheduler`, `Worker` and `Nanny`.

    Parameters
    ----------
    address : str
        The address of the scheduler, as `cluster_address` returns it.
    tls : path, optional
        The folder of certificates.

    Raises
    ------
    SecurityError
        The certificates cannot be used, as in `security_of`.
    """
    package = import_distributed()
    options: dict[str, object] = {"dashboard": False, "dashboard_address": _WEB_ADDRESS}
    if tls is not None:
        return {**options, "protocol": "tls://", "security": security_of(str(tls))}
    plain = package.Security(require_encryption=False)
    return {**options, "protocol": "tcp://", "security": plain, "host": _add_brackets(_split_address(address)[0])}


def is_loopback(host: str) -> bool:
    """Return whether a numeric address is on the loopback interface; False for any name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def connect(address: object, tls: object = None, *, timeout_s: float = _TIMEOUT_S) -> Client:
    """Return a client of a scheduler, which the caller has to close; it is not Dask's default client.

    Parameters
    ----------
    address : str
        The address, as for `cluster_address`.
    tls : path, optional
        The folder of certificates.
    timeout_s : float
        The most seconds for the scheduler's answer.

    Raises
    ------
    SecurityError
        The address or the certificates are refused here or by the scheduler.
    DeviceError
        Nothing answers at the address, or it is not a scheduler.
    MissingDependencyError
        distributed or cryptography is not installed.
    """
    package = import_distributed()
    url, security, _ = _identify_scheduler(address, tls, timeout_s)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        try:
            client: Client = package.Client(url, security=security, timeout=timeout_s, set_as_default=False)
        except (OSError, ImportError) as error:  # it is gone, or the versions do not fit
            raise DeviceError(f"{url}: {' '.join(str(error).split())}") from None
    for warning in caught_warnings:
        if "version" in type(warning.message).__name__.lower():
            _LOG.warning("%s: the scheduler or a worker has other versions of Python packages than this machine", url)
    return client


def scheduler_identity(address: object, tls: object = None, *, timeout_s: float = _TIMEOUT_S) -> Identity:
    """Return the identity of a scheduler with its workers in Dask's form. See `connect` for parameters and errors."""
    return _identify_scheduler(address, tls, timeout_s)[2]


def _identify_scheduler(address: object, tls: object, timeout_s: float) -> tuple[str, Security, Identity]:
    """Return the address of a scheduler, the security of connections to it, and its identity."""
    package = import_distributed()
    url = cluster_address(address, tls)
    security = package.Security(require_encryption=False) if tls is None else security_of(str(tls))
    arguments = {} if tls is None else security.get_connection_args("client")
    _check_reachable(url, arguments.get("ssl_context"), tls, timeout_s)
    identity = _ask_identity(url, arguments, tls, timeout_s)
    if identity["type"] != "Scheduler":
        raise DeviceError(f"{url} is a Dask {str(identity['type']).lower()}, expected the address of the scheduler")
    return url, security, identity


def _split_address(address: object) -> tuple[str, int, str]:
    """Split an address into host, port and scheme ("" if there is none)."""
    match = _ADDRESS.fullmatch(address.strip()) if isinstance(address, str) else None
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or (match["scheme"] or "tcp") not in ("tcp", "tls") or not 0 < port < 65536:
        raise SecurityError(
            f"cluster: the address is {quote(address)}, expected HOST:PORT, tls://HOST:PORT or tcp://127.0.0.1:PORT "
            f"of a Dask scheduler"
        )
    return match["host"].strip("[]"), port, match["scheme"] or ""


def _join_address(host: str, port: int) -> str:
    return f"{_add_brackets(host)}:{port}"


def _add_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _resolve_host(host: str, port: int) -> list[str]:
    """Return the numeric addresses of a host, with IPv4 last, because the last one is used."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise DeviceError(f"cluster: the host {host} is unknown; check the name, or write an address") from None
    last_first = sorted(entries, key=lambda entry: entry[0] != socket.AF_INET6)
    return [str(place[0]) for *_, place in last_first]


def _check_reachable(url: str, context: ssl.SSLContext | None, tls: object, timeout_s: float) -> None:
    """Raise DeviceError or SecurityError unless a server that may be a scheduler listens at an address.

    This does not use Dask, which repeats refused connections until the timeout and hides the errors of TLS.
    """
    host, port, _ = _split_address(url)
    _resolve_host(host, port)
    try:
        stream = socket.create_connection((host, port), timeout=timeout_s)
    except TimeoutError:
        raise DeviceError(f"{url} does not answer within {timeout_s:g} s; check address and firewall") from None
    except ConnectionRefusedError:
        raise DeviceError(f"{url}: no server listens there; check the scheduler's port, {_START}") from None
    except OSError as error:
        raise DeviceError(f"{url} cannot be reached: {reason(error)}; check the address") from None
    if context is None:
        stream.close()
        return
    try:
        with stream, context.wrap_socket(stream) as talk:
            if not talk.recv(1):  # Dask's servers send first; the refusal of a certificate also arrives here
                raise _no_scheduler_error(url, tls)
    except ssl.SSLCertVerificationError as error:
        if "expired" in str(error):
            raise SecurityError(f"{url}: the scheduler's certificate has expired; restart it with a new set") from None
        raise SecurityError(
            f"{url}: the scheduler's certificate is not from the authority in {Path(str(tls)) / 'ca.pem'}; copy the "
            "folder with which the scheduler was started"
        ) from None
    except ssl.SSLError as error:
        if "ALERT" in str(error.reason) and any(word in str(error.reason) for word in ("_CA", "CERT")):
            raise SecurityError(
                f"{url} refuses the certificate in {tls} ({error.reason}); copy the folder with which the scheduler "
                "was started"
            ) from None
        raise _no_scheduler_error(url, tls) from None
    except OSError:
        raise _no_scheduler_error(url, tls) from None


def _no_scheduler_error(url: str, tls: object) -> DeviceError:
    if tls is None:
        return DeviceError(
            f"{url} is not a Dask scheduler, or one that uses TLS only; check the port, or name its certificates "
            "with --tls DIR"
        )
    return DeviceError(
        f"{url} is not a Dask scheduler, or one without TLS; check the port, or start the scheduler with "
        f"`anatune cluster scheduler --tls {tls}`"
    )


def _ask_identity(url: str, arguments: dict[str, object], tls: object, timeout_s: float) -> Identity:
    """Return the identity of the Dask server at an address; its "type" is "Scheduler", "Worker" or "Nanny".

    A separate thread with its own event loop asks for it, because Dask's client waits without limit for a server that
    accepts a connection and sends nothing, and the thread of a notebook already has a loop.
    """
    comms = import_optional("distributed.comm", "cluster", "tuning on a cluster")

    async def ask() -> Identity:
        comm = await comms.connect(url, timeout=timeout_s, **arguments)
        try:
            await comm.write({"op": "identity", "reply": True})
            reply: Identity = await comm.read()
            reply["type"]  # an answer without it is not from a Dask server
            return reply
        finally:
            comm.abort()

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: asyncio.run(asyncio.wait_for(ask(), timeout_s)))
        if answer.exception() is not None:  # of any kind, because another server may send anything
            raise _no_scheduler_error(url, tls)
    return answer.result()
