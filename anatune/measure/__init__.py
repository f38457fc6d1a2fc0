"""Building, checking and timing kernels: here, on boards, on clusters, in an emulator; detection and calibration."""
