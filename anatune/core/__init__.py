"""The nouns of the package: workloads, hardware specs, schedules, predictions (NumPy only, no numba)."""
