"""A PostgreSQL server of the test run's own: on the loopback, a free port, under a user who is not root."""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

USER, PASSWORD = "tuner", "s3cret-" + secrets.token_hex(4)
_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
_START_S = 60.0


def program(name):
    """Return the path of a program of PostgreSQL's server; skip where it is not installed."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, _FOLDERS)]))
    if found is None:
        pytest.skip(f"PostgreSQL's {name} is not installed (Debian: apt-get install postgresql)")
    return found


class PostgresServer:
    """A server with one superuser, who needs a password."""

    def __init__(self):
        pytest.importorskip("psycopg")
        initdb, self._postgres = program("initdb"), program("postgres")
        self._user = {}
        if os.getuid() == 0:  # the server refuses root
            names = {one.pw_name for one in pwd.getpwall()}
            name = next((name for name in ("postgres", "nobody") if name in names), None)
            if name is None:
                pytest.skip("root may not run PostgreSQL, and there is neither a user postgres nor nobody")
            found = pwd.getpwnam(name)
            self._user = {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
        self.folder = Path(tempfile.mkdtemp(prefix="anatune-postgres-"))
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if self._user:
            for path in (self.folder, secret):
                os.chown(path, self._user["user"], self._user["group"])
        self.port, self._has_answered = 0, False
        self._process: subprocess.Popen | None = None
        self._run(
            initdb, "-D", self.folder / "data", "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync",
            "-E", "UTF8", "--locale=C",
        )  # fmt: skip
        self.start()

    def _run(self, *words):
        done = subprocess.run(
            list(map(str, words)), capture_output=True, text=True, env=_ENVIRONMENT, cwd=self.folder, check=False,
            timeout=_START_S, **self._user,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def start(self):
        """Start the server and wait until it answers."""
        deadline = time.monotonic() + _START_S
        while True:
            if not self._has_answered:  # from then on the port stays; until then somebody else may take it
                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    self.port = free.getsockname()[1]
            settings = {
                "listen_addresses": "127.0.0.1",
                "unix_socket_directories": self.folder,
                "fsync": "off",
                "logging_collector": "off",
            }
            options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [self._postgres, "-D", self.folder / "data", "-p", str(self.port), *options],
                    stdout=subprocess.DEVNULL, stderr=log, env=_ENVIRONMENT, cwd=self.folder, start_new_session=True,
                    **self._user,
                )  # fmt: skip
            while self._process.poll() is None:
                with contextlib.suppress(Exception), self.connect():
                    self._has_answered = True
                    return
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.05)
            # what a killed server left behind (its processes hold the shared memory) goes in a moment
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.1)

    def connect(self, database="postgres", **more):
        """Return a connection of the driver."""
        import psycopg

        options = {"host": "127.0.0.1", "port": self.port, "user": USER, "password": PASSWORD, "connect_timeout": 5}
        return psycopg.connect(dbname=database, **{**options, **more})

    def database(self):
        """Make an empty database and return its URL, with the password."""
        name = f"records_{secrets.token_hex(4)}"
        with contextlib.closing(self.connect(autocommit=True)) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database, user=USER, password=PASSWORD):
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def kill(self):
        """End all processes of the server at once, as a crash does."""
        own = self._process.pid
        children = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if _parent(path) == own]
        for pid in (own, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self):
        """End the server and remove what it wrote."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # without waiting for clients
            self._process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)


def _parent(stat):
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
