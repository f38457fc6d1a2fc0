"""``anatune doctor``: checks what is installed, which commands miss a package, and how to install it.

It also works if anatune itself does not, because this package imports only Python's library. Packages, drivers and
compilers, which may fail, are tried in separate processes (`trials`).
"""
