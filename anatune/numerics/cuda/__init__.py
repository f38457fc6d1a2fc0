"""The arithmetic of CUDA-core kernels: tiles, occupancy, time."""
