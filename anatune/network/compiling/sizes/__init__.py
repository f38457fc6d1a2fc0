"""Sizes that vary: planned for all values, and as a call has them; what stays in a model between calls."""
