"""Tensor-core schedules to TVMScript."""
