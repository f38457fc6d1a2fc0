"""Thin schedules to TVMScript."""
