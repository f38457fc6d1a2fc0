"""Search strategies: they decide which schedules a session measures next."""
