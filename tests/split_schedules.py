"""Schedules that split their reductions."""

import msgspec

import anatune
from anatune.errors import SpaceError


def split_schedule(hardware, template, workload, options, *, seed=0, tried=300):
    """Return the first of some random schedules that can have these options."""
    for schedule in anatune.space(workload, hardware, template=template).sample(tried, seed=seed):
        found = msgspec.structs.replace(schedule, options={**schedule.options, **options})
        try:
            return found.check()
        except SpaceError:
            continue
    raise AssertionError(f"no schedule of {workload.describe()} takes {options}")
