"""CUDA C run on the CPU."""
