from __future__ import annotations

OPTIONS: tuple

def backend(graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Call: ...
