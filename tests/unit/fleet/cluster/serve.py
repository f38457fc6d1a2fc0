"""A process of a cluster for tests: ``scheduler PORT``, ``worker ADDRESS``, ``workers ADDRESS COUNT`` (pretended ones).

It says one line when it is there, and ends when its input does.
"""

import asyncio
import os
import sys
import threading

from anatune.fleet.cluster.security import import_distributed, server_options
from anatune.fleet.cluster.worker import join, run_worker
from tests.unit.fleet.cluster.pretended import PretendedStation


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def ended():
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def scheduler(port):
    package = import_distributed()
    options = server_options("tcp://127.0.0.1:8786")  # for its host
    async with package.Scheduler(port=port, **options) as one:
        say(one.address)
        await ended()


async def workers(address, count):
    joined = [await join(address, None, PretendedStation(f"w{number}", run_s=0.02)) for number in range(count)]
    say(len(joined))
    await ended()


def worker(address):
    def end():
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()
    run_worker(address, device="tests.unit.fleet.cluster.pretended:make", name="w", tell=say)


if __name__ == "__main__":
    what, address, *rest = sys.argv[1:]
    if what == "worker":
        worker(address)
    elif what == "scheduler":
        asyncio.run(scheduler(int(address)))
    else:
        asyncio.run(workers(address, int(rest[0])))
