"""What compiled models of GPUs share."""
