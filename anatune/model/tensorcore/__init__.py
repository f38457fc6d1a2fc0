"""The analytical model of tensor-core schedules and its exact ranking."""
