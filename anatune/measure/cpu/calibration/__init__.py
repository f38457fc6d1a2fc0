"""Calibration of this machine's CPU: arithmetic, caches, memory and register tiles."""
