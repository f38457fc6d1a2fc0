"""Building and running in processes: workers, timing, correctness, replay."""
