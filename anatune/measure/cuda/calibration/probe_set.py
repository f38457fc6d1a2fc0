"""The set of probes that measure a GPU, by name, with sizes for the device's SMs and caches."""

from __future__ import annotations

import msgspec

from anatune.codegen.cuda import memory_probes as gpu_memory_probes
from anatune.codegen.cuda import probes as gpu_probes
from anatune.codegen.cuda.probes import GpuProbe

CHAINS = (1, 2, 4, 8)
"""Numbers of independent multiply-adds of a thread."""
WARPS = (4, 8, 16, 32)
"""Numbers of warps of an SM."""
_MATRIX_SWEEP = ((4, 8), (8, 8), (4, 16))
_THREADS = 512
_L1_LINES, _L2_LINES = 64, 8192
_DRAM_LINES, _DRAM_VISITED = 1 << 18, 4096
"""Lines of a DRAM chase and visited ones: 32 MiB, so that address translation matters little, with lines far apart."""
_LEAST_DRAM_BYTES, _MOST_DRAM_BYTES = 1 << 28, 1 << 31
_BEYOND_L2 = 12
"""Size of DRAM reads over the L2 cache, so that at most a twelfth is still in the cache."""


class PlannedProbe(msgspec.Struct, frozen=True):
    """A probe of the set.

    Attributes
    ----------
    probe : GpuProbe
    reads : str
        An earlier probe whose input it shares; "" if it has its own input.
    visited : int
        Number of lines of the chain in global memory that it follows; 0 if there is none.
    is_cold : bool
        Whether its data must not be in a cache: other memory is read before, and each line only once.
    """

    probe: GpuProbe
    reads: str = ""
    visited: int = 0
    is_cold: bool = False


def sweep_name(chains: int, warps: int) -> str:
    """Return the name of a float32 multiply-add probe."""
    return f"fma_{chains}_{warps}"


def matrix_name(dtype: str, chains: int, warps: int) -> str:
    """Return the name of a probe of the matrix units."""
    return f"matrix_{dtype}_{chains}_{warps}"


def probe_set(arch: str, num_sms: int, threads_per_sm: int, l2_bytes: int) -> dict[str, PlannedProbe]:
    """Return the probes by name, in the order in which they are made.

    ``fma_C_W`` (C chains, W warps on every multiprocessor), ``fma_float16``, ``fma_int8``, ``matrix_D_C_W`` (dtype D),
    ``shared_4``, ``_8``, ``_16`` (bytes of a load), ``l2_read``, ``dram_read``, ``dram_copy``; ``X_latency`` for X of
    fma, mma, shared, l1, l2, dram; those that the architecture has.

    Parameters
    ----------
    arch : str
        "sm_90".
    num_sms, threads_per_sm : int
        Number of SMs, and of threads that each can hold.
    l2_bytes : int
        Size of the L2 cache; half of it is read.
    """
    capability = int(arch[3:])
    blocks = num_sms * max(1, threads_per_sm // _THREADS)
    probes = {
        sweep_name(c, w): PlannedProbe(gpu_probes.make_multiply_add(arch, "float32", c, w, num_sms))
        for c in CHAINS
        for w in WARPS
    }
    probes["fma_latency"] = PlannedProbe(gpu_probes.make_multiply_add(arch, "float32", 1, 1, 1))
    for dtype, arithmetic in gpu_probes.ARITHMETIC.items():
        if dtype != "float32" and capability >= arithmetic.least_capability:
            probes[f"fma_{dtype}"] = PlannedProbe(gpu_probes.make_multiply_add(arch, dtype, 8, 32, num_sms))
    if capability >= gpu_probes.MATRIX_CAPABILITY:
        for dtype in gpu_probes.MATRIX:
            for c, w in _MATRIX_SWEEP:
                probes[matrix_name(dtype, c, w)] = PlannedProbe(gpu_probes.make_matrix_unit(arch, dtype, c, w, num_sms))
        probes["mma_latency"] = PlannedProbe(gpu_probes.make_matrix_unit(arch, "bfloat16", 1, 1, 1))
    for width, warps in ((4, 32), (8, 32), (16, 16)):
        probes[f"shared_{width}"] = PlannedProbe(gpu_memory_probes.read_shared(arch, width, warps, num_sms))
    fitting = 1 << ((l2_bytes // 2).bit_length() - 1)
    beyond = min(_MOST_DRAM_BYTES, max(_LEAST_DRAM_BYTES, 1 << (_BEYOND_L2 * l2_bytes - 1).bit_length()))
    probes["l2_read"] = PlannedProbe(gpu_memory_probes.read_global(arch, _THREADS, blocks, fitting))
    probes["dram_read"] = PlannedProbe(gpu_memory_probes.read_global(arch, _THREADS, blocks, beyond))
    probes["dram_copy"] = PlannedProbe(gpu_memory_probes.copy(arch, _THREADS, blocks, beyond), reads="dram_read")
    probes["shared_latency"] = PlannedProbe(gpu_memory_probes.chase_shared(arch))
    probes["l1_latency"] = PlannedProbe(gpu_memory_probes.chase_global(arch, "l1", _L1_LINES), visited=_L1_LINES)
    probes["l2_latency"] = PlannedProbe(gpu_memory_probes.chase_global(arch, "l2", _L2_LINES), visited=_L2_LINES)
    dram = gpu_memory_probes.chase_global(arch, "l2", _DRAM_LINES)
    probes["dram_latency"] = PlannedProbe(dram, visited=_DRAM_VISITED, is_cold=True)
    return probes
