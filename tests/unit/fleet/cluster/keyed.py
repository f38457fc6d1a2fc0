"""`tests.unit.measure.stand_ins` whose artifacts name their schedule, as all that travel have to."""

import msgspec

from tests.unit.measure import stand_ins

ENTRIES = stand_ins.ENTRIES._replace(builder="tests.unit.fleet.cluster.keyed:build")


def build(schedule, folder, *, threads=1):
    return msgspec.structs.replace(stand_ins.build(schedule, folder, threads=threads), schedule_key=schedule.key)
