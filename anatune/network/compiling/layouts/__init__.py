"""Orders of a model's activations on a CPU: the costs of all options, and the cheapest choice."""
