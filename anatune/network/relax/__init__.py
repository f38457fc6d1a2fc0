"""Whole models between TVM's Relax and anatune's graphs."""
