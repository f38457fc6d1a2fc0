"""Base classes and shared functions of all templates: space, rules, model and ranking."""
