"""``anatune configs``: files for servers."""
