"""Other people's tuners and compilers; their packages are imported only when something asks for them."""
