"""Subsets of schedules: those that are worth measuring."""
