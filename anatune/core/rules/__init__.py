"""What makes a schedule one of its workload, hardware and template; decided here, for every way in.

`Schedule.check` is called where schedules enter (JSON, lists of candidates, code generation), once for each object.
Rows of records are read as they were written, and checked where they are used. Whatever comes behind it may rely on it:
every factor is there and multiplies to its extent, every option is known, typed and fits the tiles. Whether a device
can run the schedule is another question: the model's rules.
"""

from anatune.core.rules.schedules import check_schedule

__all__ = ["check_schedule"]
