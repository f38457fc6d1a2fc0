"""Boards that a tracker of TVM's RPC knows: found, described, calibrated, measured on."""
