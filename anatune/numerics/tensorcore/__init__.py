"""The arithmetic of tensor-core kernels."""
