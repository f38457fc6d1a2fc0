"""Export of records as TVM tuning records: the two files of a MetaSchedule ``JSONDatabase``.

anatune's kernels replace the PrimFunc, because TVM's schedule primitives cannot make them from the plain loop nest. The
workload of a tuning record is therefore the generated program itself (operands in the workload's own layouts, packing
included), and its trace only annotates the root block with anatune's schedule as JSON. TVM can read, query and replay
the records; the result is the tuned program. The plain nest of an imported model does not match them; for models use
`anatune.adapters.metaschedule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from anatune.codegen.compat import import_meta_schedule, import_tvm
from anatune.codegen.cpu.lower import lower
from anatune.codegen.tvm.kernel import ANNOTATION
from anatune.core.trial import Outcome
from anatune.errors import BuildError, RecordError, SpaceError
from anatune.files import Output, OutputKind, make_folder, read_lines, reason, temporary_folder
from anatune.records.schema import Record
from anatune.untyped import ms

__all__ = ["ANNOTATION", "TVM_FILES", "write_tvm_database"]

TVM_FILES: tuple[str, str] = ("database_workload.json", "database_tuning_record.json")
"""The names that MetaSchedule gives the two files."""


def write_tvm_database(
    records: Iterable[Record], folder: str | Path, on_skip: Callable[[str], None] | None = None
) -> int:
    """Write records as a MetaSchedule database; a database in `folder` that anatune wrote is replaced completely.

    Parameters
    ----------
    records : iterable of Record
        Records; those that did not run are left out, because MetaSchedule requires a time.
    folder : str or Path
        Folder for the two files; created if it does not exist.
    on_skip : callable, optional
        Function to call with a line for each record that ran but can no longer be lowered.

    Returns
    -------
    int
        Number of tuning records that were written.

    Raises
    ------
    MissingDependencyError
        TVM is not installed.
    RecordError
        The folder cannot be created or written, or contains a database of another program.
    """
    database = import_meta_schedule()
    target = Path(folder)
    count = 0
    try:
        make_folder(target)
        is_own = _is_own(target)
        kind = OutputKind("a database that anatune wrote", lambda path: is_own)
        files = [Output(target / name, kind) for name in TVM_FILES]
        with temporary_folder(target) as scratch:
            paths = [scratch / name for name in TVM_FILES]
            opened = database.database.JSONDatabase(path_workload=str(paths[0]), path_tuning_record=str(paths[1]))
            for record in records:
                if record.trial.measurement.outcome is not Outcome.OK or not record.trial.measurement.times_s:
                    continue
                try:
                    _commit(database, opened, record)
                    count += 1
                except (BuildError, SpaceError) as error:
                    if on_skip is not None:
                        on_skip(f"record {record.id} is left out: {error}")
            contents = [path.read_bytes() if path.exists() else b"" for path in paths]
        for file, content in reversed(list(zip(files, contents, strict=True))):  # the last one marks it as anatune's
            file.write(content)
    except OSError as error:
        raise RecordError(
            f"{error.filename or target}: {reason(error)}, expected a folder for TVM's two files"
        ) from error
    return count


def _is_own(folder: Path) -> bool:
    """Return whether all tuning records of a database are anatune's."""
    has_records = False
    try:
        for line in read_lines(folder / TVM_FILES[1]):
            if ANNOTATION not in line:
                return False
            has_records = True
        return has_records
    except (OSError, UnicodeDecodeError):
        return False


def _commit(meta_schedule: ModuleType, opened: ms.database.JSONDatabase, record: Record) -> None:
    """Add a record to an open database."""
    tvm = import_tvm()
    trial = record.trial
    lowered = lower(trial.schedule, threads=trial.threads, prepacked=False)
    module = tvm.IRModule({"main": lowered.module["main"]})
    schedule = tvm.s_tir.Schedule(module)
    # A program without copies is one block; otherwise "root" contains all blocks.
    outermost = schedule.get_sblock(module["main"].body.block.name_hint)
    schedule.annotate(outermost, ANNOTATION, trial.schedule.to_json())
    workload = opened.commit_workload(module)
    opened.commit_tuning_record(
        meta_schedule.database.TuningRecord(
            schedule.trace,
            workload,
            list(trial.measurement.times_s),
            lowered.target,
            meta_schedule.arg_info.ArgInfo.from_prim_func(module["main"]),
        )
    )
