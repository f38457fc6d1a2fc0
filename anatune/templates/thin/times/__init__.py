"""Times of streams, compiled."""
