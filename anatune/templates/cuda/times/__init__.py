"""Times of tiles on CUDA cores, compiled."""
