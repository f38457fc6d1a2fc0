"""Running GPU kernels (CUDA C and Triton) on the CPU."""
