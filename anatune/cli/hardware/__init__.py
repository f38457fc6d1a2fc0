"""``anatune hw``: devices, specs, calibrations."""
