"""Compilation with numba: its options, its cache and progress. The compiled functions are in `templates/*/times`."""
