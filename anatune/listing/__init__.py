"""Lists of pruned schedules, for people and for other tuners."""
