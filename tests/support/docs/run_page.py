"""Run the blocks of a page, given as a JSON file, in this process and directory."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
import traceback
from types import ModuleType

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class BlockError(Exception):
    """A block failed, or printed something else than the page says."""


def run_python(code: str, path: str, line: int, names: dict[str, object]) -> None:
    text = "\n" * (line - 1) + code
    exec(compile(text, path, "exec", dont_inherit=True), names)


def run_pycon(code: str, path: str, line: int, names: dict[str, object]) -> None:
    test = doctest.DocTestParser().get_doctest(code, names, path, path, line - 1)
    if not test.examples:
        raise BlockError("the block has no >>> line")
    test.globs = names  # later blocks see names assigned by this one
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    if runner.run(test, out=said.append, clear_globs=False).failed:
        raise BlockError("".join(said))


def shell(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-euo", "pipefail", "-c", code]
    return subprocess.run(command, text=True, stdin=subprocess.DEVNULL, **options)


def run_bash(code: str, path: str, line: int, names: dict[str, object]) -> None:
    done = shell(code)
    if done.returncode:
        raise BlockError(f"exit status {done.returncode}")


def run_console(code: str, path: str, line: int, names: dict[str, object]) -> None:
    """Run each ``$ command`` and compare its output with the lines below it."""
    before, *commands = re.split(r"^\$ ", code, flags=re.MULTILINE)
    if before or not commands:
        raise BlockError("the block does not begin with a line '$ command'")
    for text in commands:
        command, _, expected = text.partition("\n")
        done = shell(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if not doctest.OutputChecker().check_output(expected, done.stdout, FLAGS):
            raise BlockError(f"$ {command}\nexpected:\n{expected}\ngot:\n{done.stdout}")


RUNNERS = {
    "python": run_python,
    "pycon": run_pycon,
    "bash": run_bash,
    "console": run_console,
}


def stay_on_this_machine(event: str, args: tuple[object, ...]) -> None:
    if event == "socket.connect" and isinstance(args[1], tuple):
        host = str(args[1][0])
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise BlockError(f"{host} is not this machine")


def main(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        page = json.load(file)
    sys.addaudithook(stay_on_this_machine)
    sys.modules |= dict.fromkeys(page["hidden"])  # None: ModuleNotFoundError
    sys.path.insert(0, os.getcwd())
    module = sys.modules["__main__"] = ModuleType("__main__")
    for block in page["steps"]:
        sys.stdout.flush()
        try:
            run = RUNNERS[block["language"]]
            run(block["code"], page["path"], block["line"], module.__dict__)
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and error.code in (None, 0):
                continue
            if not isinstance(error, BlockError):
                traceback.print_exc()
            else:
                print(error, file=sys.stderr)
            print(f"{page['path']}:{block['line']}: the block fails", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
