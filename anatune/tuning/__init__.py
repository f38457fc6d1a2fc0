"""Tuning sessions: ask a strategy for schedules, build and measure them, record the trials.

The package is not called ``tune``, because importing it would then replace the function `anatune.tune`.
"""
