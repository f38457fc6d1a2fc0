"""Times of tiles on tensor cores, compiled."""
