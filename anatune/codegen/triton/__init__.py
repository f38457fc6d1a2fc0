"""Schedules of the template "triton" to machine code of NVIDIA's and AMD's GPUs, by Triton's compiler."""
