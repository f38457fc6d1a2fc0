"""Measured numbers of the present CPU: its caches, memory and register tiles."""
