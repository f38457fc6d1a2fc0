"""Exporting schedules of the template `triton`: a Python file, or machine code with a header."""
