"""Schedules of the template "triton" for other programs: a Python file; machine code with a header."""
