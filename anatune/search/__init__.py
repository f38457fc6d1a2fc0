"""Search strategies: which schedules to try next."""
