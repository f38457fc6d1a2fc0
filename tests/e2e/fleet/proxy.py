"""A TCP proxy on the loopback whose connections a test may cut, hold or slow down."""

import contextlib
import socket
import threading
import time

_CHUNK = 65536


class Proxy:
    """Listens on a free port and passes everything on to another one.

    Attributes
    ----------
    port : int
        Where it listens.
    delay_s : float
        Before each piece is passed on.
    passed : int
        Connections that were taken.
    """

    def __init__(self, target_port):
        self._target = "127.0.0.1", target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.delay_s, self.passed = 0.0, 0
        self._open = set()
        self._flows = threading.Event()
        self._flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self):
        """Pass nothing on, and say nothing of it."""
        self._flows.clear()

    def release(self):
        """Pass on what was held, and what comes."""
        self._flows.set()

    def cut(self):
        """Close all connections."""
        for one in [*self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.release()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self.passed += 1
            self._open |= {near, far}
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                time.sleep(self.delay_s)
                self._flows.wait()
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()
