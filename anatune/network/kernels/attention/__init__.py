"""Attention as one kernel: what is left of the scores is a block of rows in a cache.

For each batch and head, spread over threads: the keys are turned once, so that the microkernels read them as vectors;
then, for each block of queries, its scores go into a buffer, `rows` makes powers of them there, and their product with
the values, in place where those lie, goes to the result, each row times one over the sum of its powers. Both products
are schedules of the template "cpu" with their usual microkernels (`planned`), or, where queries or keys are known at
run time, microkernels of every number of rows (`run_time`).

Float32; errors beside float64: those of the sums of products (``dim`` and ``keys`` terms), and a few ulp of the powers,
as the same steps have one by one.
"""

from anatune.network.kernels.attention.kernel import AttentionKernel, Blocks, pitch, tile_rows, tile_schedule

__all__ = ["AttentionKernel", "Blocks", "attention_program", "pitch", "tile_rows", "tile_schedule"]


def attention_program(kernel: AttentionKernel, name: str, lanes: int, threads: int) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR it calls).

    Its parameters: the tensors of queries, keys and values, the mask (mask_rows, keys), symbols of sizes that are known
    at run time, the result (batch * queries, heads * value_dim).
    """
    if kernel.is_open:
        from anatune.network.kernels.attention.run_time import RunTimeWriter

        return RunTimeWriter(kernel, name, lanes, threads).program()
    from anatune.network.kernels.attention.planned import PlannedWriter

    return PlannedWriter(kernel, name, lanes, threads).program()
