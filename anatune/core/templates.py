"""What schedules, which are below all templates and all code generation, ask of those: who is above puts it here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["LOWERING", "REGISTERED"]

REGISTERED: dict[str, Any] = {}
"""Name -> `base.template.Template`, the default of each kind of device first; `anatune.templates` registers them."""
LOWERING: dict[str, Callable[..., Any]] = {}
""""lower": `codegen.devices.lower`, which ``anatune/__init__.py`` names."""
