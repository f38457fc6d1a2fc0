"""Measured numbers of a GPU: probes, checked before they are timed."""
