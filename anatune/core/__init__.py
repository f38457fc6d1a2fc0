"""Nouns: workloads, hardware specs, schedules, predictions (numpy only, no numba)."""
