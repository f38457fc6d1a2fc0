"""Compiled functions that compute the predicted times of Winograd schedules."""
