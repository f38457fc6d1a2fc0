"""``anatune`` with shorter patience: ``python -m tests.e2e.fleet.quick WORDS...``, constants in FLEET_CONSTANTS.

A JSON object, "module:NAME" -> value.
"""

import importlib
import json
import os

CONSTANTS = "FLEET_CONSTANTS"


def set_constants():
    for name, value in json.loads(os.environ.get(CONSTANTS, "{}")).items():
        module, _, attribute = name.partition(":")
        assert hasattr(importlib.import_module(module), attribute), name
        setattr(importlib.import_module(module), attribute, value)


if __name__ == "__main__":
    set_constants()
    from anatune.__main__ import run

    run()
