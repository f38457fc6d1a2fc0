"""Reports: results as tables and text."""
