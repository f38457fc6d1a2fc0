"""Calibration of GPUs by probes, which are checked before they are timed."""
