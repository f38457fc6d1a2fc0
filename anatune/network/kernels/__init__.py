"""Kernels of CPUs that networks alone need, as LLVM IR: attention, rows, windows, moves, recurrent layers."""
