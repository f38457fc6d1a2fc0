"""Workloads: loop nests, their constructors, their text and their rules."""
