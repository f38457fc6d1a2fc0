"""Sizes that vary, when a model is planned and when it is called, and the state between calls."""
