"""CUDA-core and tensor-core schedules for other programs: CUDA C, cubins, C headers."""
