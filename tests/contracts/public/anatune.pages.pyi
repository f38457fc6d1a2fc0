from __future__ import annotations

class Column:
    help: str
    is_text: bool
    name: str

class Facts:
    items: Sequence[tuple[str, str, str]]

class Figure:
    caption: str
    figure: go.Figure
    height: int
    words: str

class Page:
    footer: str
    lead: Sequence[str]
    sections: Sequence[Section]
    title: str
    def html(self) -> str: ...
    def write(self, path: str | os.PathLike[str]) -> None: ...

class Section:
    content: Sequence[Content]
    heading: str
    points: Sequence[str]
    words: Sequence[str]

class Slider:
    answers: Sequence[Facts]
    name: str
    start: int
    stops: Sequence[str]

class Sliders:
    sliders: Sequence[Slider]

class Table:
    caption: str
    columns: Sequence[Column]
    marked: Sequence[int]
    rows: Sequence[Sequence[Cell]]
    rows_shown: int

def model_page(compiled: CompiledModel | ModelSummary, measured_s: Mapping[str, float] | None = None, *, name: str = '') -> Page: ...

def plan_page(plan: Plan, *, what_if_s: float | None = 20.0, progress: Progress | None = None, seed: int = 0) -> Page: ...

def prune_page(subset: Subset, plan: Plan, most: int = 1000) -> Page: ...

def records_page(given: Viewed, *, source: str = '') -> Page: ...

def session_page(given: Viewed) -> Page: ...

def space_sections(plan: Plan, candidates: Candidates | None = None, measured: Sequence[Measured] = (), cut_s: float | None = None) -> list[Section]: ...
