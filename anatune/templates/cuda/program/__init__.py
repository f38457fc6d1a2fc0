"""Schedules of CUDA cores to TVMScript."""
