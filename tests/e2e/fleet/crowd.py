"""Many pretended workers in one process: ``python -m tests.e2e.fleet.crowd ADDRESS NAME...``.

The one called "plain" is a Dask worker that knows nothing of anatune.
"""

import asyncio
import sys

from anatune.fleet.cluster.security import import_distributed, server_options
from anatune.fleet.cluster.worker import join
from tests.e2e.fleet.pretended import make


async def main(address, *names):
    workers = []
    for name in names:
        if name == "plain":
            workers.append(await import_distributed().Worker(address, name=name, **server_options(address)))
        else:
            workers.append(await join(address, None, make(name, 1)))
    print("joined", flush=True)  # noqa: T201
    await asyncio.gather(*(worker.finished() for worker in workers))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
