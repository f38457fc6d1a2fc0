"""Analytical models: objects to arrays, predictions, exact ranking, explanations."""
