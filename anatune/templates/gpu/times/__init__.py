"""Compiled code that the models of GPU templates share."""
