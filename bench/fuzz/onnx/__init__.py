"""Random ONNX graphs."""
