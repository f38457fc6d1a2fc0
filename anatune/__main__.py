"""``python -m anatune``: the same as the ``anatune`` script."""

from anatune.cli.main import run

if __name__ == "__main__":
    run()
