"""The workloads of the functions in a MetaSchedule database, for the import of its tuning records."""

from __future__ import annotations

from anatune.adapters.logs import FunctionReader
from anatune.codegen.compat import TVM_ERRORS, import_meta_schedule, last_line
from anatune.codegen.tvm.kernel import TirTask
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators.naming import named_workload
from anatune.errors import MissingDependencyError, WorkloadError
from anatune.records.traces import Json


def function_reader() -> FunctionReader | None:
    """Return a function that reads an entry of database_workload.json, or None if TVM is not installed."""
    try:
        meta_schedule = import_meta_schedule()
    except MissingDependencyError:
        return None

    def read(entry: Json) -> tuple[Workload, Workload] | str:
        try:
            nest = TirTask(meta_schedule.database.Workload.from_json(entry).mod).workload
        except WorkloadError as error:
            return str(error)
        except TVM_ERRORS as error:
            return f"TVM cannot read it: {last_line(error)}"[:120]
        return nest, named_workload(nest)

    return read
