"""Whole networks of PyTorch and ONNX: read as graphs, planned, built, checked, saved, run (``anatune compile``)."""
