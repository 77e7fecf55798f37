"""Says how attempts ended: one call in flight for each verb, with everything that has gathered."""

import threading
import time
from collections.abc import Callable
from typing import Any

from tests.conformance.reference.calls import Caller, NoAnswer, Reply, encode, pauses
from tests.conformance.reference.leases import Lease
from tests.conformance.reference.wrongs import Wrongs

MOST = 250
Entry = tuple[Lease, dict[str, Any]]


class Ends:
    """over is told what became of each lease whose end was answered."""

    def __init__(self, caller: Caller, wrongs: Wrongs, over: Callable[[Lease, str], None]) -> None:
        self._caller = caller
        self._wrong = wrongs
        self._over = over
        self._waiting: dict[str, list[Entry]] = {"complete": [], "fail": [], "release": []}
        self._changed = threading.Condition()
        self._under_way = 0
        for verb in self._waiting:
            threading.Thread(target=self._run, args=(verb,), daemon=True).start()

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return self._under_way == 0

    def send(self, verb: str, lease: Lease, body: dict[str, Any]) -> None:
        with self._changed:
            self._waiting[verb].append((lease, body))
            self._under_way += 1
            self._changed.notify_all()

    def _run(self, verb: str) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting[verb])
                most = 1 if self._wrong("ends_one_by_one") else MOST
                entries, self._waiting[verb] = self._waiting[verb][:most], self._waiting[verb][most:]
            self._settle(verb, entries)
            with self._changed:
                self._under_way -= len(entries)

    def _settle(self, verb: str, entries: list[Entry]) -> None:
        """Send entries together, and each alone when the whole is refused."""
        reply = self._repeat(verb, entries)
        if reply is None:
            return
        if reply.status == 200:
            lost = [result for result in reply.body["results"] if result["status"] == "lease_lost"]
            if lost and self._wrong("repeats_lost_ends"):
                self._repeat(verb, entries)
            for (lease, _), result in zip(entries, reply.body["results"], strict=True):
                self._over(lease, result["status"])
        elif len(entries) > 1 and not self._wrong("blames_all"):
            for entry in entries:
                self._settle(verb, [entry])
        elif verb == "complete" and not self._wrong("drops_refused"):
            kind = "RuntimeError" if self._wrong("no_result_refused") else "result_refused"
            error = {"type": kind, "message": reply.body["detail"]}
            for lease, _ in entries:
                self._settle("fail", [(lease, {"error": error, "retryable": False})])
        else:
            for lease, body in entries:
                self._refused(verb, lease, body)

    def _refused(self, verb: str, lease: Lease, body: dict[str, Any]) -> None:
        """Send a report that was refused alone once more, reduced; give it up when it is that already."""
        if self._wrong("fails_refused_reports") and body.get("error", {}).get("type") != "result_refused":
            error = {"type": "result_refused", "message": "the report is refused"}
            self._settle("fail", [(lease, {"error": error, "retryable": False})])
            return
        lesser = reduced(body)
        if self._wrong("insists_on_reports"):
            time.sleep(0.5)
        elif lesser == body or self._wrong("drops_refused"):
            self._over(lease, "ok")
            return
        self._settle(verb, [(lease, lesser)])

    def _repeat(self, verb: str, entries: list[Entry]) -> Reply | None:
        """Send a call until it is answered; None when this run gives up."""
        items = [{**lease.token, **body} for lease, body in entries]
        if self._wrong("rounds_tokens"):
            items = [{**item, "lease_version": item["lease_version"] // 10 * 10} for item in items]
        raw = encode({"items": items})
        for pause in pauses():
            if self._wrong("clock_stops_ends") and all(lease.is_over for lease, _ in entries):
                return None
            least = 0.0
            try:
                reply = self._caller.send("POST", f"/v1/leases/{verb}", raw)
                if not reply.is_weather:
                    return reply
                least = 0 if self._wrong("ignores_retry_after") else reply.retry_after
            except NoAnswer:
                if self._wrong("fails_lost_complete") and verb == "complete":
                    error = {"message": "no answer"}
                    self._settle("fail", [(lease, {"error": error}) for lease, _ in entries])
                    return None
            if self._wrong("sends_ends_once"):
                for lease, _ in entries:
                    self._over(lease, "ok")
                return None
            if self._wrong("rewrites_ends"):
                raw += b" "
            time.sleep(max(least, 0.01 if self._wrong("hammers") else pause))
        return None


def reduced(body: dict[str, Any]) -> dict[str, Any]:
    """Return an end without what may be too much of it."""
    lesser = {name: value for name, value in body.items() if name != "reason"}
    if "error" in body:
        kept = {name: value for name, value in body["error"].items() if name != "details"}
        lesser["error"] = kept | {"message": kept["message"][:1000]}
    return lesser
