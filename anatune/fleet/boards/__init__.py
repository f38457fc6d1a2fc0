"""Boards that are registered with TVM's RPC tracker: detection, calibration and measurement."""
