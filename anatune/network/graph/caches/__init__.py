"""Attention over caches that models are given: in pages, of sequences of their own lengths."""
