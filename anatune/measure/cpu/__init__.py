"""CPUs: detection and calibration of this machine's CPU, built kernels."""
