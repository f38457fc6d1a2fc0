"""anatune as a backend of torch.compile and of ONNX's tests, and as a pipeline of Relax: see `anatune.adapters`."""
