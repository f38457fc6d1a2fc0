"""Building and running kernels in separate processes: worker processes, timing, checking of results."""
