"""Times of Winograd's phases, compiled."""
