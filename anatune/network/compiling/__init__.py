"""Compile whole models: plan, build, check, save and load them."""
