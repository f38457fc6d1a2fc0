"""Which schedules deserve a run."""
