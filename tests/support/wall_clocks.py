"""The wall clock of one process, ahead or behind, and movable while it runs: libfaketime."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.programs import needed_program


class WallClock:
    """What a process that gets ``environ`` takes for the time of day; its monotonic clock is the real one.

    Nothing else is touched: not this process, and not the database server. The library breaks time.sleep;
    of the service only what runs several processes, or the bundled server, calls it.
    """

    def __init__(self, path: Path, *, offset_seconds: int = 0) -> None:
        self._path = path
        self._library = _library()
        self.move(offset_seconds)

    def move(self, offset_seconds: int) -> None:
        """Let the clock be so far from the real one from now on."""
        # In one step: the process reads the file with every look at the clock.
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{offset_seconds:+d}\n", encoding="ascii")
        fresh.replace(self._path)

    @property
    def environ(self) -> Mapping[str, str]:
        return {
            "LD_PRELOAD": self._library,
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            # No operating system lets the monotonic clock jump.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Else every module would look changed, and be compiled anew for everybody.
            "NO_FAKE_STAT": "1",
        }


def _library() -> str:
    """Return the library as the program names it to what it starts: its place differs between systems."""
    command = [str(needed_program("faketime")), "-f", "+0", "printenv", "LD_PRELOAD"]
    environ = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()
