"""NVIDIA GPUs: detection, driver, calibration, kernels."""
