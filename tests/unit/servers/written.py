"""Files as `write_configs` returns them, for what shows them."""

from anatune.core.hardware.files import hardware
from anatune.servers.files import ConfigRequest
from anatune.servers.shapes import Experts, Product
from anatune.servers.written import RowChoice, WrittenFile

TILE, USUAL = (64, 128, 64, 4, 3, 1, 1), (16, 64, 128, 4, 4, 1, 1)
SHAPE = Experts(64, 1024, 2048, 8)
REQUEST = ConfigRequest("vllm", hardware("h200"), (SHAPE, Product(1536, 7168)))


def choices(measured=False):
    """Return three rows: one is gained by, one's default does not run, one is bound by launches."""
    times = (1.9e-5, 3.8e-5) if measured else (None, None)
    return [
        RowChoice(1, TILE, 2e-5, USUAL, 3e-5, 1e-5, "launch", *times),
        RowChoice(8, TILE, 4e-5, USUAL, None, 1e-5, "dram", why="build_error: ptxas says no" if measured else ""),
        RowChoice(512, TILE, 8e-5, USUAL, 8e-5, 1.5e-5, "dram"),
    ]


def written(measured=False):
    """Return the files of `REQUEST`."""
    return [
        WrittenFile("E=64,N=1024,device_name=NVIDIA_H200.json", SHAPE, choices(measured)),
        WrittenFile("N=1536,K=7168,device_name=NVIDIA_H200.json", Product(1536, 7168), choices()),
    ]
