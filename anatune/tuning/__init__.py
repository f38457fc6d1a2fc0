"""Tuning: ask a strategy, build and measure what it wants, record, tell.

The package is not called ``tune``: importing a module of it would put the package in the place of `anatune.tune`, the
function.
"""
