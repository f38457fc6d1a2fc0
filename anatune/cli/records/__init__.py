"""``anatune records``: one file a command."""
