"""Exporting CPU schedules as C libraries with headers."""
