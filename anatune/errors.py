"""The exception tree: every error a user can meet is an ``AnatuneError`` with a one-line message.

A message says which object and field, what was got, what was expected and the next step. Each leaf also
inherits the builtin that callers expect, so ``except ValueError`` keeps working.
"""

from __future__ import annotations

from anatune.printable import printable


class AnatuneError(Exception):
    """Root of all errors raised on purpose by anatune; the message is one line, whatever text it quotes."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(" ".join(arg.split("\n"))) if isinstance(arg, str) else arg for arg in args))


class WorkloadError(AnatuneError, ValueError):
    """A workload cannot exist as asked for (an extent of 0, a negative stride, text that does not parse)."""


class SpecError(AnatuneError, ValueError):
    """A hardware spec file is damaged, incomplete, or contradicts itself."""


class SpaceError(AnatuneError, ValueError):
    """A point or a schedule does not belong to the tile space it was used with."""


class UnknownNameError(AnatuneError, LookupError):
    """A name (hardware, layer, operator, strategy) is not known; the message lists the known ones."""


class DeviceError(AnatuneError, RuntimeError):
    """The present machine lacks, or does not tell about, the device that was asked for."""


class MissingDependencyError(AnatuneError, ImportError):
    """An optional package is not installed; the message gives the pip line."""


class ModelVersionError(AnatuneError, ValueError):
    """A saved model is damaged, incomplete, or of another version of the features."""


class NotJudgedWarning(UserWarning):
    """Another program's tuner asked about something that no model covers: it was left as it is."""


class BuildError(AnatuneError, RuntimeError):
    """A schedule cannot be lowered or compiled."""


class RunError(AnatuneError, RuntimeError):
    """A built kernel cannot be loaded or run as asked for."""


class DivisionError(RunError, ZeroDivisionError):
    """A model divides whole numbers by zero."""


class RecordError(AnatuneError, ValueError):
    """A record file is damaged, of another version, or cannot be written."""


class SecurityError(AnatuneError, ValueError):
    """Certificates cannot be used, or what was asked for would let anybody in."""


def no_scratch(error: OSError) -> str:
    """Return why temporary files cannot be written, and what to do, in one line."""
    import tempfile

    return f"{tempfile.gettempdir()}: {error.strerror or error}; free some space or set TMPDIR"
