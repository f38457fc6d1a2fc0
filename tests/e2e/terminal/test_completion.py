"""The Tab key: in bash itself, and without what takes long to import."""

import shutil
import subprocess
import sys

import pytest

_TRY = r"""
eval "$(anatune completion bash)"
complete -p anatune
try() {  # as bash calls it: the words as it splits them, at colons, too
    COMP_LINE="$1" COMP_POINT=${#1} COMPREPLY=()
    read -ra COMP_WORDS <<< "${1//:/ : }"
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _anatune_completion anatune
    printf '%s ' "${COMPREPLY[@]}"
    echo
}
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_in_bash(script, environment):
    tried = [
        "anatune ca", "anatune hw ca", "anatune plan --hw rtx308", "anatune plan --hw rtx3090 resnet18:C1",
        "anatune plan --hw rtx3090 conv", "anatune plan --hw rtx3090 matmul 8", "anatune tune --strategy dr",
        "anatune plan --template t", "anatune plan --time",
    ]  # fmt: skip
    code = f'PATH="{script.rpartition("/")[0]}:$PATH"\n{_TRY}' + "".join(f'try "{line}"\n' for line in tried)
    done = subprocess.run(
        ["bash", "--norc", "-c", code], capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    assert done.stderr == ""
    registered, *found = done.stdout.splitlines()
    assert registered == "complete -o default -F _anatune_completion anatune"
    assert [line.split() for line in found] == [
        [], ["calibrate"], ["rtx3080", "rtx3080_10gb"],
        ["C1", "C10", "C11", "C12"], ["conv1d", "conv2d", "conv3d"], [], ["droplet"], ["thin", "triton"],
        ["--time-limit"],
    ]  # fmt: skip


def test_nothing_heavy_is_imported(environment):
    code = (
        "import sys\nfrom anatune.cli.main import main\n"
        "status = main()\nprint(status, [name for name in ('numba', 'tvm', 'pandas', 'scipy', 'sqlalchemy') "
        "if name in sys.modules])"
    )
    asked = {"_ANATUNE_COMPLETE": "complete_bash", "COMP_WORDS": "anatune plan --hw rtx3090 bert:M0", "COMP_CWORD": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment | asked, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["bert:M0", "0 []"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_their_script(anatune, shell):
    done = anatune("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_ANATUNE_COMPLETE" in done.stdout
