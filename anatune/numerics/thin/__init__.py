"""The arithmetic of thin kernels: streams of one large operand."""
