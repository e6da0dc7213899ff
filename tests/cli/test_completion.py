"""Completion in bash, zsh and fish, by scripts of ``--completion``."""

import subprocess
import sys

import pytest

from fastshard.cli.entry import main
from support.marks import needs, not_sanitized
from support.processes import Terminal

pytestmark = not_sanitized
shtab = pytest.importorskip("shtab")

# A line, and the word that completes its last one.
COMPLETED = [
    ("fastshard ve", "verify"),
    ("fastshard cache wa", "warm"),
    ("fastshard help ver", "verify"),
    ("fastshard ls --lo", "--long"),
    ("fastshard cache warm --off", "--offline"),
    ("fastshard index --format tar", "tar.idx"),
    ("fastshard ls --color al", "always"),
    ("fastshard stat dat", "data"),
    ("fastshard cat data/tra", "data/train.tar"),
    ("fastshard verify data/train.tar data/tra", "data/train.tar"),
    ("fastshard ls --cache-dir dat", "data"),
    ("fastshard ls --token-file data/tra", "data/train.tar"),
    ("fastshard query dat", "data"),
    ("fastshard datasets la", "label"),
    ("fastshard schemas di", "diff"),
    ("fastshard datasets --index data/tra", "data/train.tar"),
    ("fastshard datasets ls --ask", "--ask-index-password"),
    ("fastshard datasets ls --index-password-file data/tra", "data/train.tar"),
]
COMMANDS = {"ls", "cat", "stat", "verify", "index", "convert", "query", "compact",
            "cache", "datasets", "schemas", "demo", "help"}  # fmt: skip
BASH = """
. ./script
COMP_WORDS=({line})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
function=$(complete -p fastshard | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function fastshard "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

ZSH = """
autoload -U compinit; compinit -u -D
eval "$(cat script)"
show() {
  zle complete-word
  print -r -- $BUFFER >> completed
  BUFFER=
  zle -M "shown-$((++shown))."
}
zle -N show
bindkey '^T' show
print is-$((1 + 1))-ready
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.tar").write_bytes(b"")
    return tmp_path


def write_script(shell, folder):
    command = [sys.executable, "-m", "fastshard", "--completion", shell]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b""
    (folder / "script").write_bytes(done.stdout)
    subprocess.run([shell, "-n", folder / "script"], check=True)


def output_of(folder, *args):
    done = subprocess.run(
        args, cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def complete_bash(folder, line):
    last = ' ""' if line.endswith(" ") else ""
    code = BASH.format(line=line + last)
    return output_of(folder, "bash", "--norc", "-c", code)


def complete_fish(folder, line):
    code = f"source script; complete -C '{line}'"
    found = output_of(folder, "fish", "--no-config", "-c", code)
    return [text.partition("\t")[0].rstrip("/") for text in found]


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_commands_options_choices_and_paths_are_completed(shell, folder):
    needs(shell)
    complete = {"bash": complete_bash, "fish": complete_fish}[shell]
    write_script(shell, folder)
    for line, word in COMPLETED:
        assert complete(folder, line) == [word], line
    assert set(complete(folder, "fastshard ")) == COMMANDS


def test_fish_shows_one_line_for_each_command(folder):
    needs("fish")
    write_script("fish", folder)
    code = "source script; complete -C 'fastshard '"
    menu = dict(
        line.split("\t")
        for line in output_of(folder, "fish", "--no-config", "-c", code)
    )
    assert menu["ls"] == "list the files (members) stored in shards"


def test_zsh_completes_at_its_prompt(folder):
    needs("zsh")
    write_script("zsh", folder)
    (folder / "setup").write_text(ZSH)
    with Terminal(["zsh", "-f"], cwd=folder) as terminal:
        terminal.send(". ./setup\r")
        terminal.read_until(lambda text: "is-2-ready" in text)
        for k, (line, _) in enumerate(COMPLETED):
            terminal.send(line + "\x14")  # Ctrl-T
            terminal.read_until(lambda text, k=k: f"shown-{k + 1}." in text)
    completed = (folder / "completed").read_text().splitlines()
    for (line, word), found in zip(COMPLETED, completed, strict=True):
        whole = line.rpartition(" ")[0] + " " + word
        assert found.rstrip(" /") == whole, line


def test_without_shtab_its_installation_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--completion", "bash"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "pip install 'shtab>=1.13'" in err


def test_a_shtab_without_fish_is_told(monkeypatch, capsys):
    monkeypatch.setattr(shtab, "SUPPORTED_SHELLS", ["bash", "zsh", "tcsh"])
    assert main(["--completion", "fish"]) == 2
    assert "newer shtab: pip install" in capsys.readouterr().err


def test_other_shells_are_wrong_usage(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--completion", "tcsh"])
    assert exit_.value.code == 2
    assert "expected one of bash, zsh, fish" in capsys.readouterr().err
