"""Places where a session's schedules are built and measured: this machine, a cluster, boards."""
