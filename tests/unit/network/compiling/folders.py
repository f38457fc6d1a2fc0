"""Folders of compiled models, changed as nobody should."""

import errno
import hashlib
import json
import os


def contents(folder):
    """Return what ``model.json`` says of the model and its files."""
    return json.loads((folder / "model.json").read_text())["contents"]


def signed(folder, changed):
    """Write contents with the digest that belongs to them; NaN and the like as Python's json does."""
    text = json.dumps(changed)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / "model.json").write_text(f'{{"format": 3, "sha256": "{digest}", "contents": {text}}}')


def fill_disk(monkeypatch):
    """Let the disk be full when all of a model but its summary is written."""
    replace = os.replace

    def full(source, target):
        if str(target).endswith("model.json"):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
