"""CPU schedules for other programs: C libraries and headers."""
