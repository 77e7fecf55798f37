"""Programs that are no Python packages: a test that needs one is skipped where it is not installed."""

import os
import shutil
from pathlib import Path

import pytest


def needed_program(name: str) -> Path:
    """Return where the program is; skip the test without it.

    In CI it fails instead: a test that never runs there proves nothing.
    """
    # Some live where only root looks.
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
    if found is None:
        reason = f"{name} is not installed; .ci/packages installs it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(found)
