"""Tuning: ask a strategy, build and measure what it wants, record, tell."""
