"""Exceptions: every error that a user can meet is an ``AnatuneError`` with a message of one line.

A message says which object and field is wrong, what was got, what was expected and what to do next. Each class also
inherits the builtin exception that callers expect, so that ``except ValueError`` works.
"""

from __future__ import annotations

from anatune.printable import printable


class AnatuneError(Exception):
    """Base class of all errors that anatune raises on purpose; the message is always one line."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(" ".join(arg.split("\n"))) if isinstance(arg, str) else arg for arg in args))


class WorkloadError(AnatuneError, ValueError):
    """A workload is impossible (an extent of 0, a negative stride) or its text cannot be parsed."""


class SpecError(AnatuneError, ValueError):
    """A hardware spec file is damaged, incomplete, or contradicts itself."""


class SpaceError(AnatuneError, ValueError):
    """A schedule, a point or another argument does not fit the tile space, or an argument is out of range."""


class UnknownNameError(AnatuneError, LookupError):
    """A name (of hardware, a layer, an operator, a strategy) is unknown; the message lists close or all known names."""


class DeviceError(AnatuneError, RuntimeError):
    """The requested device is missing on this machine, or the machine cannot describe it."""


class MissingDependencyError(AnatuneError, ImportError):
    """An optional package is not installed; the message contains the pip command."""


class ModelVersionError(AnatuneError, ValueError):
    """A saved correction is damaged, incomplete, or made for another version of the features."""


class NotJudgedWarning(UserWarning):
    """A tuner of another program asked about something that no model of anatune covers; its list was not changed."""


class BuildError(AnatuneError, RuntimeError):
    """A schedule cannot be lowered or compiled."""


class RunError(AnatuneError, RuntimeError):
    """A built kernel cannot be loaded or run."""


class DivisionError(RunError, ZeroDivisionError):
    """A network divides integers by zero."""


class RecordError(AnatuneError, ValueError):
    """A record file is damaged, has another version, or cannot be written."""


class SecurityError(AnatuneError, ValueError):
    """Certificates cannot be used, or a setting would open a service to anybody."""


def no_scratch(error: OSError) -> str:
    """Return a message of one line that says why temporary files cannot be written, and what to do."""
    import tempfile

    return f"{tempfile.gettempdir()}: {error.strerror or error}; free some space or set TMPDIR"
