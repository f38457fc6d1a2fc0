"""What makes a schedule one of its workload, hardware and template; decided here, for every way in.

`Schedule.check` is called where schedules enter (JSON, lists of candidates, code generation), once for each object.
Rows of records are read as they were written, and checked where they are used. Whatever comes behind it may rely on it:
every factor is there and multiplies to its extent, every option is known, typed and fits the tiles. Whether a device
can run the schedule is another question: the model's rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.templates import REGISTERED
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError

__all__ = ["check_schedule"]


def check_schedule(
    workload: object, hardware: object, template: object, tiles: object, unroll: object, vector: object, options: object
) -> None:
    """Raise unless the fields of a schedule (see there) fit each other.

    Raises
    ------
    SpaceError
        The message names the field, what was got and what was expected.
    """
    if not isinstance(workload, Workload):
        raise SpaceError(f"schedule: workload is {workload!r:.60}, expected a Workload")
    if not isinstance(hardware, GpuSpec | CpuSpec):
        raise SpaceError(f"schedule: hardware is {hardware!r:.60}, expected a GpuSpec or a CpuSpec")
    templates = tuple(known.name for known in REGISTERED.values() if known.kind == hardware.kind)
    if not isinstance(template, str) or template not in templates:
        raise SpaceError(
            f"schedule: template is {template!r:.40}, expected one of {', '.join(templates)} for {hardware.name}"
        )
    for name, value in (("tiles", tiles), ("vector", vector), ("options", options)):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise SpaceError(f"schedule: {name} is {value!r:.60}, expected a mapping by name")
    try:
        REGISTERED[template].check(workload, hardware, tiles, unroll, vector, options)
    except SpaceError as error:
        raise SpaceError(f"schedule of {workload.operator} ({template}): {error}") from None
