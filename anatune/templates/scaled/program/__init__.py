"""Programs of the template "scaled"."""
