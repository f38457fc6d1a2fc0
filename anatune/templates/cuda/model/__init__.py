"""The analytical model of tiles on CUDA cores."""
