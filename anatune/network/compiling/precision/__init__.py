"""Models that are compiled in another precision."""
