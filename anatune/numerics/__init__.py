"""Batch numerics: arrays and numbers in, arrays out; no objects, strings or I/O."""
