"""Templates "cuda" and "pipelined": tiles on CUDA cores."""
