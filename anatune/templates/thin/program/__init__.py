"""Code generation: thin schedules to TVMScript."""
