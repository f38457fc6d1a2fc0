"""Models as typed graphs of operators, and what is done to them before any code is written."""
