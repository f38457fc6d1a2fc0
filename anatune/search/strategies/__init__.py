"""The search strategies, one in each module."""
