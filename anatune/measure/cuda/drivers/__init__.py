"""Driver calls for NVIDIA and AMD GPUs through Python packages."""
