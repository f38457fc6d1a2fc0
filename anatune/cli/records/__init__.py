"""``anatune records``: its subcommands, one module each."""
