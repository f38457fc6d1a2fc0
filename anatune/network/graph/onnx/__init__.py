"""Read ONNX models as graphs: `reading` reads a model, `call` is one node, `operators` reads one operator."""
