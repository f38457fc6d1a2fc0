"""Schedules of tensor cores to TVMScript."""
