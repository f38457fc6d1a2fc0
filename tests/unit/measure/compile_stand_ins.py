"""Compilers of schedules that do as the unroll depth says; run in builder processes."""

import os
import time

from anatune.core.compiler_facts import CompilerFacts
from anatune.errors import BuildError, MissingDependencyError, SpaceError


def by_unroll(schedule, folder, *, threads=1):
    """0: good, 16: spills, 64: refused, 512: never ends, 1024: dies."""
    unroll = schedule.unroll
    if unroll == 64:
        raise BuildError("ptxas says no")
    if unroll == 512:
        time.sleep(600)
    if unroll == 1024:
        os._exit(3)
    return CompilerFacts(200, 1024, spill_bytes=16 if unroll else 0, local_bytes=32 if unroll else 0, code_bytes=5000)


def impossible(schedule, folder, *, threads=1):
    raise SpaceError("factors do not fit")


def nothing_installed(schedule, folder, *, threads=1):
    raise MissingDependencyError("install it with: pip install cuda-bindings")


def set_up():
    """Triton, as it were."""


def build_schedule(schedule, folder, *, threads=1):
    """By group_m: 1: refused, 2: never ends, 4: dies."""
    if schedule.options["group_m"] == 2:
        time.sleep(600)
    if schedule.options["group_m"] == 4:
        os._exit(3)
    raise BuildError("Triton says no")
