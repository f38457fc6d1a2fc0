"""Random programs and files compared with float64: `python -m bench.fuzz` (see docs/bench/fuzz.md)."""
