"""In which orders the activations of a model lie on a CPU: costs of the options, and which of them is the cheapest."""
