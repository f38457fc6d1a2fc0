"""Opening MetaSchedule databases that contain kernels of anatune, also inside ``tune_tir`` and ``tune_relax``.

with target, anatune.adapters.metaschedule.open_database(work_dir):
    model = tvm.relax.transform.MetaScheduleApplyDatabase()(model)

TVM's ``JSONDatabase`` replays its records while it is constructed, and ``tune_relax`` constructs it without asking any
option first. The first call here that needs MetaSchedule therefore wraps the constructor (`meta_schedule`): the wrapper
first registers the kernels in the files. Databases without kernels of anatune open as before.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from anatune.adapters.metaschedule.kernels import register_database, register_files
from anatune.arguments import check_path
from anatune.codegen.compat import TVM_ERRORS, import_meta_schedule, last_line, register_errors
from anatune.codegen.tvm.records import TVM_FILES
from anatune.errors import AnatuneError, RecordError
from anatune.untyped import ms

__all__ = ["database_files", "meta_schedule", "open_database"]

_WRAPPED = "_knows_kernels_of_anatune"


def open_database(folder: str | Path, on_skip: Callable[[str], None] | None = None) -> ms.database.JSONDatabase:
    """Open the ``JSONDatabase`` of a folder, and register anatune's kernels so that TVM can apply its records.

    Inside ``with target:``, kernels that the target cannot run are left out.

    Parameters
    ----------
    folder : str or Path
        The ``work_dir`` of ``tune_tir`` and ``tune_relax``.
    on_skip : callable, optional
        Called with a line for each function whose fastest kernel cannot be built by this version. Such a function keeps
        its own loops. By default these lines are logged as warnings.

    Raises
    ------
    RecordError
        The folder has no database, or TVM cannot replay one of its lines: `repair_database` moves such lines to another
        file.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported.
    """
    package = meta_schedule()
    return package.database.JSONDatabase(*map(str, database_files(folder)), allow_missing=False, on_skip=on_skip)


def database_files(folder: str | Path) -> tuple[Path, Path]:
    """Return the paths of a database's two files, workloads first.

    Raises
    ------
    RecordError
        A file is missing.
    """
    base = check_path("the database's folder", folder, RecordError)
    paths = base / TVM_FILES[0], base / TVM_FILES[1]
    for path in paths:
        if not path.is_file():
            raise RecordError(f"{path}: no such file, expected a MetaSchedule database; name its work_dir")
    return paths


def meta_schedule() -> ModuleType:
    """Return TVM's meta_schedule package, and let its databases register anatune's kernels from now on.

    Raises
    ------
    MissingDependencyError
        The package cannot be imported.
    """
    package = import_meta_schedule()
    cls = package.database.JSONDatabase
    construct = cls.__init__
    if not hasattr(construct, _WRAPPED):
        register_errors()

        @functools.wraps(construct)
        def reopen(
            self: ms.database.JSONDatabase, *args: str, on_skip: Callable[[str], None] | None = None, **options: str
        ) -> None:
            paths = _paths(*args, **options)
            if paths is None:  # TVM reports the missing argument
                construct(self, *args, **options)
                return
            problems = register_files(*paths)
            try:
                construct(self, *args, **options)
            except TVM_ERRORS as error:
                raise _explain_failure(paths[1], problems, error) from None
            register_database(self, on_skip)

        setattr(reopen, _WRAPPED, True)
        cls.__init__ = reopen
    return package


def _paths(
    path_workload: str | None = None, path_tuning_record: str | None = None, *, work_dir: str | None = None, **_: object
) -> tuple[Path, Path] | None:
    """Return the files that ``JSONDatabase`` opens, given its arguments."""
    given = (path_workload, path_tuning_record)
    if work_dir is None and None in given:
        return None
    first, second = (own or os.path.join(work_dir or "", name) for own, name in zip(given, TVM_FILES, strict=True))
    return Path(first), Path(second)


def _explain_failure(path: Path, problems: dict[int, str], error: BaseException) -> AnatuneError:
    """Return the error for a database that TVM did not open."""
    if isinstance(error, AnatuneError):
        return error
    problem = f"TVM cannot read it: {last_line(error)}"
    if problems:
        number = min(problems)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        problem = f"line {number}{more} cannot be replayed: {problems[number]}"
    repair = "anatune.adapters.metaschedule.repair_database"
    return RecordError(f"{path}: {problem}; {repair}({str(path.parent)!r}) moves such lines to another file")
