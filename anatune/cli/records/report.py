"""``anatune records report``: what sessions of a record file or server found, as text, JSON or a page."""

from __future__ import annotations

from pathlib import Path

from anatune.cli.options import AsJson, Html, spread
from anatune.cli.output import line_width, note_once, print_json, print_lines, print_text
from anatune.cli.outputs import check_html, write_page
from anatune.cli.records.place import Selection, Words, WorkerName, of_known_templates, opened
from anatune.errors import RecordError
from anatune.named import load

__all__ = ["report_records"]


@spread
def report_records(
    which: Selection, words: Words = None, worker: WorkerName = None, html: Html = None, as_json: AsJson = False
) -> None:
    """Say what sessions found: the best, the end, how well it was predicted, failures, drift, why the winner won.

    With --html as a page: for each workload and device its sessions over each other, as `anatune tune --html` has one.
    """
    from anatune.report.session_words import report_dict, report_lines
    from anatune.report.sessions import session_views

    path, workload = which.named(words)
    page_file = check_html(html, path if isinstance(path, Path) else None)
    with opened(path) as store:
        only = which.session_id(store)
        tell = note_once()
        every = store.trials(workload, which.hw, only, which.threads, worker=worker, on_damage=tell)
        trials = list(of_known_templates(every, tell))
    if not trials and page_file is not None:
        raise RecordError(f"no trials in {path} meet the conditions, no page was written; leave some of them out")
    views = session_views(trials)
    if as_json:
        print_json([report_dict(view) for view in views])
    elif trials:
        print_lines(report_lines(views, width=line_width()))
    else:
        print_text(f"no trials in {path} meet the conditions")
    if page_file is not None:
        write_page(load("pages", "records")(views, source=str(path)), page_file)
