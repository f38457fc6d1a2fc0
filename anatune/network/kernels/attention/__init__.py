"""Attention as one kernel: only a block of rows of the scores exists at a time, in a cache.

For each batch and head, distributed over threads, the keys are transposed once, so that microkernels read them as
vectors. Then, for each block of queries, the scores are written to a buffer, `rows` turns them into powers there, and
the product of the powers with the values, which stay where they are, is written to the result, each row divided by the
sum of its powers. Both products are schedules of the template "cpu" with its microkernels (`planned`). If the number of
queries or keys is known only at run time, there are microkernels for every number of rows (`run_time`).

Numbers are float32. The errors relative to float64 are those of the sums of products (``dim`` and ``keys`` terms) and a
few ulp of the powers, as for the same steps one by one.
"""

from anatune.network.kernels.attention.kernel import AttentionKernel, QueryBlocks, pitch, tile_rows, tile_schedule

__all__ = ["AttentionKernel", "QueryBlocks", "attention_program", "pitch", "tile_rows", "tile_schedule"]


def attention_program(kernel: AttentionKernel, name: str, lanes: int, threads: int) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR that it calls).

    Parameters: the tensors of queries, keys and values, the mask (mask_rows, keys), symbols of sizes that are known
    only at run time, the result (batch * queries, heads * value_dim).
    """
    if kernel.is_open:
        from anatune.network.kernels.attention.run_time import RunTimeWriter

        return RunTimeWriter(kernel, name, lanes, threads).program()
    from anatune.network.kernels.attention.planned import PlannedWriter

    return PlannedWriter(kernel, name, lanes, threads).program()
