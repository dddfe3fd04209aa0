"""Run `trainyard` commands in processes that have loaded PyTorch already, which takes longer than most commands do.

As a program it loads what commands import, and a model that several pages serve; then it forks a process for every
command that it is asked for. All else is as where the command is started by itself: that process runs what the script
`trainyard` runs, with arguments, a folder and an output of its own, and ends with it.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_SHELL = set("|&;<>()$`*?[]#~=%!\\\n")


def is_plain(command: str) -> bool:
    """Whether a command is `trainyard` and its arguments, for which no shell does anything but split them."""
    plain = "".join(command.split("'")[::2])
    return command.startswith("trainyard ") and _SHELL.isdisjoint(plain)


def run_loaded(
    command: str, folder: Path, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run a plain command in a folder; what it printed to stdout and stderr is the result's stdout."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    printed = folder.with_name(f"{folder.name}.printed")
    asked = str(folder), str(printed), dict(environment), shlex.split(command)
    print(json.dumps(asked), file=server.stdin, flush=True)
    code = int(server.stdout.readline())
    text = printed.read_text()
    printed.unlink()
    return subprocess.CompletedProcess(command, code, stdout=text)


@cache
def _server() -> "subprocess.Popen[str]":
    """This file as a program, which ends with this process: when its stdin is closed."""
    return subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _load() -> None:
    from trainyard.engine.simulate import load
    from trainyard.hardware.parse import parse_cluster
    from trainyard.job.planning import plan  # noqa: F401
    from trainyard.serve.deploy import served_model

    load()
    served_model("llama3-8b", parse_cluster("1x1xA100-80G"))


def _serve() -> None:
    from trainyard.cli.main import run

    del sys.path[0]  # the folder of this file, which is not the command's
    _load()
    for line in sys.stdin:
        folder, printed, environment, arguments = json.loads(line)
        if pid := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            continue
        os.chdir(folder)
        os.environ |= environment
        os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        os.dup2(1, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = arguments
        run()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _serve()
