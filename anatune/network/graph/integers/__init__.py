"""Integers that stand for numbers: 8 bits with scales and zero points."""
