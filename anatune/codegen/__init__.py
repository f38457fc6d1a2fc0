"""Code generation: schedules become TVM modules, shared libraries and GPU machine code."""
