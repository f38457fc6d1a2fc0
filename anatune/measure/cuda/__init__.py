"""GPUs: detection, driver calls, launches; for NVIDIA GPUs also calibration and measuring kernels."""
