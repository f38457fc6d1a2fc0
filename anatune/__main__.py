"""``python -m anatune``, and what the ``anatune`` script calls."""

import sys

__all__ = ["run"]


def run() -> None:
    """Run the command line and exit. Ctrl-C while it is still being imported is one line, too."""
    try:
        from anatune.cli.main import run as run_command

        run_command()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("error: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    run()
