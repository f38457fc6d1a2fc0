"""Options of commands that have many stand under headings."""

from anatune.cli.main import load_all_commands
from anatune.cli.panels import GROUPS, Grouped

_MANY = 8


def commands(command, words="anatune"):
    """Yield (words, command) of each command that does something."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words, command
        return
    for name, one in inner.items():
        yield from commands(one, f"{words} {name}")


def options_of(command):
    return [
        next(name for name in option.opts if name.startswith("--"))
        for option in command.params
        if option.opts[0][0] == "-"
    ]


COMMANDS = dict(commands(load_all_commands()))


def test_each_option_of_a_large_command_has_a_group():
    large = {words: options_of(command) for words, command in COMMANDS.items() if len(options_of(command)) > _MANY}
    assert "anatune tune" in large
    for words, options in large.items():
        assert isinstance(COMMANDS[words], Grouped), words
        assert not [name for name in options if name not in GROUPS], words


def test_no_group_names_an_option_that_is_gone():
    there = {name for command in COMMANDS.values() for name in options_of(command)}
    assert set(GROUPS) <= there


def test_the_help_shows_groups_in_order(capsys):
    COMMANDS["anatune tune"](["--help"], standalone_mode=False)
    shown = capsys.readouterr().out
    titles = [title for title in dict.fromkeys(GROUPS.values()) if f"{title}:" in shown]
    assert len(titles) >= 6
    places = [shown.index(f"{title}:") for title in titles]
    assert places == sorted(places)
    assert shown.index("--strategy") > shown.index("Search:")
