"""Attention over caches that the caller passes: in pages, and for sequences of different lengths."""
