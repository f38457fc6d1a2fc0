"""Nouns: workloads, hardware specs, tile spaces, schedules, predictions (numpy only, no numba)."""
