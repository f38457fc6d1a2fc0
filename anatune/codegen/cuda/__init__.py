"""GPU schedules to CUDA C and cubins."""
