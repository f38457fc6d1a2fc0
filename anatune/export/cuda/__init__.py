"""Exporting schedules for CUDA cores and tensor cores: CUDA C, cubins and C headers."""
