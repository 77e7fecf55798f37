"""A client of the standard library, for the suite's own tests: right, or wrong in the ways it is told.

python -m tests.conformance.reference [mistake …]
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tests.conformance.reference.calls import Caller
from tests.conformance.reference.producer import Producer
from tests.conformance.reference.worker import Worker
from tests.conformance.reference.wrongs import Wrongs


def main() -> int:
    settings = json.loads(os.environ["CONFORMANCE"])
    wrongs = Wrongs(set(sys.argv[1:]))
    caller = Caller(settings["url"], settings.get("api_key"))
    writing = threading.Lock()
    with Path(settings["events"]).open("a", buffering=1, encoding="utf-8") as events:

        def write(event: dict[str, Any]) -> None:
            with writing:
                events.write(json.dumps(event) + "\n")

        if settings["role"] == "producer":
            produce(Producer(caller, wrongs), settings["produce"], write)
            return 0
        worker = Worker(caller, settings["worker"], wrongs, write)
        signal.signal(signal.SIGTERM, lambda *_: worker.take_signal())
        if not wrongs("ignores_sigint"):
            signal.signal(signal.SIGINT, lambda *_: worker.take_signal())
        code = worker.run()
        # Handlers that cannot be stopped end with the process.
        os._exit(code)


def produce(producer: Producer, entries: list[dict[str, Any]], write: Any) -> None:
    for entry in entries:
        if "submit" in entry:
            reply = producer.submit(entry["submit"])
            made = [{"created": reply.status == 201, "job": reply.body}]
        else:
            reply = producer.submit_many(entry["submit_many"])
            made = reply.body.get("jobs", [])
        if reply.status >= 300:
            write({"event": "refused", "code": reply.body["code"], "status": reply.status})
            continue
        for one in made:
            write({"event": "submitted", "id": one["job"]["id"], "created": one["created"]})
    write({"event": "done"})


if __name__ == "__main__":
    raise SystemExit(main())
