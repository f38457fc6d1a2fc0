"""Whole models: planned, built, saved, loaded."""
