"""The words of the code: docstrings that are sentences, functions named by verbs, classes of different names."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import anatune.errors

PACKAGE = Path(anatune.__file__).parent
TESTS = PACKAGE.parent / "tests"
GLOSSARY = PACKAGE.parent / "docs" / "reference" / "glossary.md"
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
PROSE = re.compile(r"[a-z]{2,} [a-z]{2,} [a-z]{2,}")
"""Three words in a row: golden texts have those (``tests/wording.py``)."""
COMPREHENSION = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
TREES = {path: ast.parse(path.read_bytes()) for path in sorted(PACKAGE.rglob("*.py"))}

FRAGMENT = re.compile(
    r"(Of|What|Whatever|That|Those|This is|As|For|In|On|At|By|With|From|To|Where|Wherever|Which|Who|Whose|How|When|If"
    r"|Whether|Into|Between|Beside|Under|Over|Per|After|Before|Because|So|And|Or|But|Likewise|Such|Also)\b"
)
"""First words of docstrings that are no sentence and no noun phrase."""

EMPTY = frozenset({"found", "one", "own", "place", "made", "known", "asked", "at", "much", "thing"})
"""Names that do not say what a variable is."""
PLACES = ("tuning", "fleet", "measure", "cli/tune", "network/compiling/tuning.py", "servers/measuring.py", "records")
"""Packages in which a place is one where schedules are measured, or records are kept."""

REGULAR_VERBS = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "shred", "speed", "weed"})
"""Verbs that end as participles do."""
IRREGULAR = re.compile(
    r"written|taken|given|shown|drawn|chosen|hidden|seen|broken|grown|torn|thrown|frozen|built|made|known|kept|said|told"
    r"|found|left|held|lost|sent|laid|paid|done|gone|begun|bought|brought|caught|taught|understood"
)
VERBS = re.compile(
    r"add|allocate|apply|ask|build|call|chase|check|choose|compile|compute|convert|"
    r"copy|count|describe|drop|emit|find|flatten|get|guard|has|import|is|keep|"
    r"list|load|lower|make|mark|measure|move|note|open|pack|parse|plan|predict|print|"
    r"put|quote|read|record|refuse|remove|replace|report|return|run|say|schedule|"
    r"score|select|set|show|skip|sort|split|start|store|suggest|sum|take|tell|"
    r"test|transpose|unfuse|use|wait|write"
)
"""Verbs that names of functions begin with, so that the participle behind is what they act on."""
PREDICATE = re.compile(r"_*(is|are|has|have|can|was|were|needs|may|must|does|do|should|allows|holds|takes)_")
PARTICIPLES = {
    "prepared": "a public method of compiled networks",
    "_unpickled": "pickled networks name it",
    "num_kept": "a number", "num_reduced": "a number", "num_failed": "a number",
}  # fmt: skip
"""Name of a function that ends in a participle -> why it may."""


def located(path, node):
    """Return where a node is, for a message."""
    return f"{path.relative_to(PACKAGE.parent)}:{node.lineno}"


def docstrings(tree):
    """Yield the docstrings of a module with the node before each: of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([node, *body], body, strict=False):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if is_text and isinstance(statement.value.value, str) and not isinstance(before, ast.Expr):
                yield statement, statement.value.value


def variables(function):
    """Yield the parameters and local variables of a function that live longer than one expression."""
    arguments = function.args
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    waiting = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, COMPREHENSION | FUNCTION | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node
        waiting += ast.iter_child_nodes(node)


def ends_in_participle(name):
    """Return whether a name is a participle, or ends in one and begins with no verb (`write_packed` is fine)."""
    *before, last = name.strip("_").split("_")
    is_participle = bool(IRREGULAR.fullmatch(last)) or (last.endswith("ed") and last not in REGULAR_VERBS)
    return is_participle and not (before and VERBS.fullmatch(before[0]))


def is_property(function):
    """Return whether a function is read as a value, whose name is no verb."""
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_docstrings_are_sentences_or_noun_phrases():
    bad = [
        f"{located(path, node)}: {' '.join(text.split())[:60]}"
        for path, tree in TREES.items()
        for node, text in docstrings(tree)
        if FRAGMENT.match(text.strip())
    ]
    assert not bad


def test_docstrings_describe_parameters_that_exist_and_errors():
    bad = []
    for path, tree in TREES.items():
        for node in (node for node in ast.walk(tree) if isinstance(node, FUNCTION)):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
            names = {argument.arg for argument in given if argument}
            parts = re.split(r"^(\w+)\n-{3,}\n", ast.get_docstring(node) or "", flags=re.MULTILINE)
            for title, part in zip(parts[1::2], parts[2::2], strict=True):
                heads = [line.partition(" : ")[0] for line in part.splitlines() if line[:1].strip()]
                described = [word.lstrip("*") for head in heads for word in head.split(", ")]
                if title == "Parameters" and not names.issuperset(described):
                    bad.append(f"{located(path, node)}: {sorted(set(described) - names)}")
                if title == "Raises" and not all(re.fullmatch(r"[\w.]*\b[A-Z]\w+", word) for word in described):
                    bad.append(f"{located(path, node)}: {described}")
    assert not bad


def test_functions_are_named_by_verbs():
    bad = [
        f"{located(path, node)}: {node.name}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTION) and node.name not in PARTICIPLES and not is_property(node)
        if ends_in_participle(node.name) and not PREDICATE.match(node.name)
    ]
    assert not bad


def test_no_two_classes_have_one_name():
    places = defaultdict(list)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(located(path, node))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_variables_say_what_they_are():
    bad = []
    for path, tree in TREES.items():
        is_placing = str(path.relative_to(PACKAGE)).startswith(PLACES)
        for function in ast.walk(tree):
            if isinstance(function, FUNCTION):
                for node in variables(function):
                    name = node.arg if isinstance(node, ast.arg) else node.id
                    if name in EMPTY and not (name == "place" and is_placing):
                        bad.append(f"{located(path, node)}: {name} in {function.name}")
    assert not bad


def unused_words():
    """Return the words that the glossary does not use, lower case, with what to write for each."""
    section = GLOSSARY.read_text().partition("## Words that we do not use")[2]
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", section, re.MULTILINE)
    return {word: instead for words, instead in rows[2:] for word in words.split(", ")}


@pytest.mark.skipif(not GLOSSARY.exists(), reason="an installed package has no documents beside it")
def test_words_that_the_glossary_does_not_use_appear_nowhere():
    words = unused_words()
    assert words
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, words))})s?\b", re.IGNORECASE)
    texts = {path: path.read_text() for path in GLOSSARY.parents[1].rglob("*.md") if path != GLOSSARY}
    for path, tree in TREES.items():
        strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        texts[path] = "\n".join(text for text in strings if isinstance(text, str) and " " in text)
    used = {
        f"{path.relative_to(PACKAGE.parent)}: {word.lower()}": number
        for path, text in texts.items()
        for word, number in Counter(match[1].lower() for match in pattern.finditer(text)).items()
    }
    assert not used


@pytest.mark.parametrize(
    ("name", "is_one"), [("lowered", True), ("_kept", True), ("rows_written", True), ("read_seed", False)]
)
def test_participles_are_seen(name, is_one):
    assert ends_in_participle(name) == is_one


@pytest.mark.skipif(not TESTS.exists(), reason="an installed package has no tests beside it")
def test_tests_do_not_assert_the_wording_of_our_errors():
    ours = {name for name, value in vars(anatune.errors).items() if isinstance(value, type)}
    bad = []
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) in ("pytest.raises", "pytest.warns")):
                continue
            kinds = {name.id for name in ast.walk(node.args[0]) if isinstance(name, ast.Name)} if node.args else set()
            texts = [keyword.value for keyword in node.keywords if keyword.arg == "match"]
            if kinds & ours and any(PROSE.search(ast.unparse(text)) for text in texts):
                bad.append(located(path, node))
    assert not bad
