"""Corrections of predicted times that are learned from measurements."""
