"""What anatune itself costs: points a second, milliseconds a trial, seconds from the shell."""
