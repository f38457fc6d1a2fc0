"""Corrections learned from measurements."""
