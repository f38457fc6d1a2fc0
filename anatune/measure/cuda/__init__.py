"""GPUs: detection, driver, launches of models; of NVIDIA's also calibration and kernels."""
