"""Schedules for CUDA cores as TVMScript."""
