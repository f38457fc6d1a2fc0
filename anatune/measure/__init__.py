"""Building, checking and timing kernels on this machine or in an emulator; detection and calibration of devices."""
