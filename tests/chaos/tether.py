"""Runs a program that ends with its parent: ``python -m tests.chaos.tether PARENT_PID PROGRAM ARGUMENT...``.

A suite that is killed must leave no replica and no client behind, stopped ones included.
"""

import os
import signal
import sys
from pathlib import Path

from app.embedded.child import end_with_parent

ROOT = Path(__file__).parents[2]


def tethered(*command: str) -> list[str]:
    """Return the command line that runs a command as a child of this process; its folder must be ROOT."""
    return [sys.executable, "-m", "tests.chaos.tether", str(os.getpid()), *command]


def main() -> None:
    parent_pid, *command = sys.argv[1:]
    end_with_parent(int(parent_pid), signal.SIGKILL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
