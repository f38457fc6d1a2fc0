"""The analytical models of CUDA-core schedules and their exact ranking."""
