"""Compiled and compared networks as pages and figures."""
