"""Template "cpu", and with sums in half precision: microkernels in nests of loops."""
