"""Networks as typed graphs of operators: the readers that build graphs, and the passes that rewrite them."""
