"""Quantised numbers: integers of 8 bits with scales and zero points."""
