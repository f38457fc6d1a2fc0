import pytest

from anatune.doctor.machine import shell_findings


@pytest.mark.parametrize(
    ("shell", "name"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", ".config/fish/completions/anatune.fish")]
)
def test_a_shell_that_completes_and_one_that_does_not(shell, name, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    (finding,) = shell_findings()
    assert (finding.level, f"anatune completion {shell}" in finding.fix, name in finding.fix) == ("note", True, True)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(f'eval "$(anatune completion {shell})"\n')
    (finding,) = shell_findings()
    assert (finding.level, name in finding.text) == ("ok", True)


def test_other_shells_are_left_alone(monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/dash")
    assert list(shell_findings()) == []
    monkeypatch.delenv("SHELL")
    assert list(shell_findings()) == []
