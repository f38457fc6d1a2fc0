"""CUDA-core schedules to CUDA C, cubins and exports."""
