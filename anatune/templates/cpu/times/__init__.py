"""Compiled functions that compute the predicted times of CPU nests."""
