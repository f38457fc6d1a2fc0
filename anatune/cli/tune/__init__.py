"""``anatune tune``: parsing, building for elsewhere, what is shown."""
