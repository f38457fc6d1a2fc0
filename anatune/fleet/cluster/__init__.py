"""Measuring on other machines through Dask: security, workers, and a session's measurer."""
