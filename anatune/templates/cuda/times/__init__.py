"""Compiled functions for the times of tiles on CUDA cores."""
