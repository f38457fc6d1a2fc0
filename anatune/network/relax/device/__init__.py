"""Models for GPUs as launches: what no planned kernel computes as Triton kernels, and memory for everything."""
