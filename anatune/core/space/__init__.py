"""Tile spaces: which schedules a template has, one module a template."""
