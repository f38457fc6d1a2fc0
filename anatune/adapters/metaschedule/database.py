"""MetaSchedule databases that hold kernels of anatune's: opening them, also inside ``tune_tir`` and ``tune_relax``.

with target, anatune.adapters.metaschedule.open_database(work_dir):
    model = tvm.relax.transform.MetaScheduleApplyDatabase()(model)

TVM's ``JSONDatabase`` replays its records while it is constructed, and ``tune_relax`` constructs it inside: no option
of its sees the folder before. So the first call into this package that needs MetaSchedule wraps the constructor
(`meta_schedule`): kernels are made known from the files first. Databases without kernels of anatune's open as ever.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from anatune.adapters.metaschedule.kernels import register_database, register_files
from anatune.arguments import checked_path
from anatune.codegen.compat import TVM_ERRORS, import_meta_schedule, last_line, register_errors
from anatune.codegen.tvm.records import TVM_FILES
from anatune.errors import AnatuneError, RecordError
from anatune.untyped import ms

__all__ = ["database_files", "meta_schedule", "open_database"]

_WRAPPED = "_knows_kernels_of_anatune"


def open_database(folder: str | Path, on_skip: Callable[[str], None] | None = None) -> ms.database.JSONDatabase:
    """Return the ``JSONDatabase`` of a folder, with anatune's kernels known to TVM so that its records can be applied.

    Inside ``with target:`` kernels that the target cannot run are left out, too.

    Parameters
    ----------
    folder : str or Path
        The ``work_dir`` of ``tune_tir`` and ``tune_relax``.
    on_skip : callable, optional
        Called with a line for each function whose fastest kernel cannot be made (any more): it keeps its own loops. By
        default these lines are logged as warnings.

    Raises
    ------
    RecordError
        It holds no database, or a line of it cannot be replayed: `repair_database` moves such lines aside.
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
        One is missing.
    """
    place = checked_path("the database's folder", folder, RecordError)
    paths = place / TVM_FILES[0], place / TVM_FILES[1]
    for path in paths:
        if not path.is_file():
            raise RecordError(
                f"{path}: no such file, expected a database of MetaSchedule's; name the work_dir that it was tuned in"
            )
    return paths


def meta_schedule() -> ModuleType:
    """Return TVM's meta_schedule package, whose databases know anatune's kernels from here on.

    Raises
    ------
    MissingDependencyError
        It cannot be imported.
    """
    package = import_meta_schedule()
    cls = package.database.JSONDatabase
    construct = cls.__init__
    if not hasattr(construct, _WRAPPED):
        register_errors()

        @functools.wraps(construct)
        def opened(
            self: ms.database.JSONDatabase, *args: str, on_skip: Callable[[str], None] | None = None, **options: str
        ) -> None:
            paths = _paths(*args, **options)
            if paths is None:  # TVM says what is missing
                construct(self, *args, **options)
                return
            problems = register_files(*paths)
            try:
                construct(self, *args, **options)
            except TVM_ERRORS as error:
                raise _refused(paths[1], problems, error) from None
            register_database(self, on_skip)

        setattr(opened, _WRAPPED, True)
        cls.__init__ = opened
    return package


def _paths(
    path_workload: str | None = None, path_tuning_record: str | None = None, *, work_dir: str | None = None, **_: object
) -> tuple[Path, Path] | None:
    """Return the files that ``JSONDatabase`` opens, from its arguments."""
    given = (path_workload, path_tuning_record)
    if work_dir is None and None in given:
        return None
    first, second = (own or os.path.join(work_dir or "", name) for own, name in zip(given, TVM_FILES, strict=True))
    return Path(first), Path(second)


def _refused(path: Path, problems: dict[int, str], error: BaseException) -> AnatuneError:
    """Return what is said of a database that TVM did not open."""
    if isinstance(error, AnatuneError):
        return error
    what = f"TVM cannot read it: {last_line(error)}"
    if problems:
        number = min(problems)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        what = f"line {number}{more} cannot be replayed: {problems[number]}"
    repair = "anatune.adapters.metaschedule.repair_database"
    return RecordError(f"{path}: {what}; {repair}({str(path.parent)!r}) moves such lines to a file beside it")
