"""Times of nests on CPUs, compiled."""
