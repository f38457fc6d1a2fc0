"""``anatune doctor``: what is installed, what is missing for which command, and the one line that fixes it.

Works where anatune itself does not: this package imports nothing but Python's library. Whatever may fail (packages,
drivers, compilers) is tried in processes of its own (`trials`).
"""
