"""Models in TVM's Relax: written from graphs, read as graphs, built and run."""
