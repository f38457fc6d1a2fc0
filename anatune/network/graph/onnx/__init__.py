"""ONNX models as graphs: `reading` walks a model, `call` is what one of its nodes asks, `operators` what each means."""
