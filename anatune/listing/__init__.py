"""Schedules that deserve a run, listed for people and for other tuners."""
