"""What every template has: a space, rules, a model, a ranking."""
