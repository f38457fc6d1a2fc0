"""Compiled functions that compute the predicted times of thin schedules."""
