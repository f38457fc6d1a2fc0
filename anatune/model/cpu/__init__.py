"""The analytical model of CPU schedules and its exact ranking."""
