"""Schedules of the template "triton" to machine code of NVIDIA and AMD GPUs, with Triton's compiler."""
