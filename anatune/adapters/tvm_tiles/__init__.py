"""Kernels that others generate: Triton's tiles, TVM's CPU nests."""
