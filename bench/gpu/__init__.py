"""Kernels of a GPU: beside cuBLAS, cuDNN and Triton on a device, and on the CPU where there is none."""
