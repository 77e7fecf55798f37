"""``fencepost work`` under the conformance suite: this process is it, and runs the script beside this one."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from app.work.command import work

_LOOK_SECONDS = 0.005


def main() -> None:
    """Begin to work, with the options that the suite asks for."""
    settings = json.loads(os.environ["CONFORMANCE"])
    worker = settings["worker"]
    if settings.get("api_key"):
        os.environ["FENCEPOST_CLIENT_KEY"] = settings["api_key"]
    threading.Thread(target=_tell_when_ready, args=(settings["events"],), daemon=True).start()
    options = [f"--queue={queue}" for queue in worker["queues"]]
    options += [
        f"--{name.replace('_', '-')}={worker[name]}"
        for name in ("concurrency", "lease_seconds", "wait_seconds", "drain_seconds", "grace_seconds")
    ]
    handler = Path(__file__).with_name("conformance_handler.py")
    work([f"--url={settings['url']}", *options, "--", sys.executable, "-I", "-S", str(handler)])


def _tell_when_ready(events: str) -> None:
    not_yet = threading.Event()
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        not_yet.wait(_LOOK_SECONDS)
    with Path(events).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"event": "ready"}) + "\n")


if __name__ == "__main__":
    main()
