"""The present CPU: detection, calibration, kernels."""
