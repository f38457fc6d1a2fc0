"""GPU schedules to CUDA C, cubins and exports."""
