"""Backends for torch.compile, for ONNX's tests, and a pipeline for Relax: see `anatune.adapters`."""
