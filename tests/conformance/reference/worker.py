"""The reference client as a worker: threads, and no thought of speed."""

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from tests.conformance.reference import handler
from tests.conformance.reference.beats import Beats
from tests.conformance.reference.calls import Caller, NoAnswer, Reply, encode, hang_up, pauses
from tests.conformance.reference.ends import Ends
from tests.conformance.reference.leases import Lease, LeaseLost, now
from tests.conformance.reference.wrongs import Wrongs

SETUP_REFUSED = (400, 401, 403, 404, 413, 415, 422)


class Worker:
    """Leases jobs, runs their handlers, and says how they ended. ``run`` returns the exit code."""

    def __init__(
        self,
        caller: Caller,
        options: Mapping[str, Any],
        wrongs: Wrongs,
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        self._caller = caller
        self._options = options
        self._wrong = wrongs
        self._write = write
        self._id = "worker" if wrongs("one_name_for_all") else f"reference-{uuid.uuid4().hex[:12]}"
        self._leases: dict[tuple[str, int], Lease] = {}
        self._changed = threading.Condition()
        self._signals = 0
        self._failed = False
        self._polling: Any = None
        self._is_asking = False
        self._ends = Ends(caller, wrongs, self._over)
        self._beats = Beats(caller, wrongs, options["lease_seconds"], self._held)

    def take_signal(self) -> None:
        self._signals += 1

    def run(self) -> int:
        threads = [self._poll] * (2 if self._wrong("polls_twice") else 1) + [
            self._beats.run,
            self._watch_clock,
        ]
        for work in threads:
            threading.Thread(target=work, daemon=True).start()
        self._write({"event": "ready"})
        while not self._signals and not self._failed:
            time.sleep(0.02)
        self._drain()
        return 1 if self._failed else 0

    # Leasing.

    def _held(self) -> list[Lease]:
        with self._changed:
            return [
                lease
                for lease in self._leases.values()
                if not lease.is_over and (lease.is_running or not self._wrong("no_heartbeat_for_ends"))
            ]

    def _free(self) -> int:
        free: int = self._options["concurrency"]
        if not self._wrong("leases_ahead"):
            free -= sum(1 for lease in self._leases.values() if lease.is_running or not lease.is_over)
        if self._wrong("frees_slot_on_return"):
            free += sum(1 for lease in self._leases.values() if not lease.is_running and not lease.is_over)
        return free

    def _poll(self) -> None:
        self._is_asking = True
        self._poll_on()
        self._is_asking = False

    def _poll_on(self) -> None:
        while (not self._signals or self._wrong("leases_on")) and not self._failed:
            with self._changed:
                if self._free() <= 0:
                    self._changed.wait(0.02)
                    continue
                max_jobs = self._free()
            self._lease(max_jobs)

    def _lease(self, max_jobs: int) -> None:
        wait = self._options["wait_seconds"]
        if not self._wrong("waits_on"):
            wait = min(wait, self._options["lease_seconds"] / 3)
        body = {
            "worker_id": self._id,
            "queues": self._options["queues"][:1] if self._wrong("one_queue") else self._options["queues"],
            "max_jobs": max_jobs,
            "wait_seconds": 0.5 if self._wrong("short_polls") else wait,
            "lease_seconds": self._options["lease_seconds"],
            "request_id": self._id[:64] if self._wrong("one_request_id") else uuid.uuid4().hex,
        }
        began = now()
        for pause in pauses():
            if self._signals and not self._wrong("leases_on"):
                return
            if self._wrong("new_request_id"):
                body["request_id"] = uuid.uuid4().hex
            sent_at = now()
            if sent_at - began > self._options["lease_seconds"] and not self._wrong("old_request_id"):
                return
            reply = self._ask(body, wait + (2 if self._wrong("short_timeout") else 10))
            if reply is not None and (reply.status in SETUP_REFUSED or not reply.is_weather):
                self._take(reply, now() if self._wrong("counts_from_the_answer") else sent_at)
                return
            least = reply.retry_after if reply and not self._wrong("ignores_retry_after") else 0
            if self._wrong("gives_up"):
                self._failed = True
                return
            wanted = max(least, self._pause(pause))
            self._sleep(wanted)

    def _pause(self, pause: float) -> float:
        if self._wrong("hammers"):
            return 0.01
        return 0.3 if self._wrong("same_pauses") else pause

    def _ask(self, body: Mapping[str, Any], timeout: float) -> Reply | None:
        self._polling = self._caller.connection(timeout)
        try:
            return self._caller.send("POST", "/v1/leases", encode(body), on=self._polling)
        except NoAnswer:
            return None
        finally:
            self._polling = None

    def _take(self, reply: Reply, sent_at: float) -> None:
        if reply.status in SETUP_REFUSED:
            self._failed = not self._wrong("ignores_401")
            self._sleep(0.2)
            return
        if self._signals:
            for job in reply.body["jobs"]:
                self._ends.send("release", Lease(job, sent_at), {})
            return
        for job in reply.body["jobs"]:
            self._start(Lease(job, sent_at, deadline=self._deadline(job, reply.body["server_time"], sent_at)))
        if reply.retry_after and not reply.body["jobs"] and not self._wrong("ignores_retry_after"):
            self._sleep(reply.retry_after)

    def _deadline(self, job: Mapping[str, Any], server_time: str, sent_at: float) -> float:
        """Return when the attempt is over, on this process's clock."""
        if job["deadline_at"] is None or self._wrong("no_deadline"):
            return float("inf")
        left = datetime.fromisoformat(job["deadline_at"]) - datetime.fromisoformat(server_time)
        return sent_at + left.total_seconds()

    def _start(self, lease: Lease) -> None:
        with self._changed:
            for earlier in list(self._leases.values()):
                if earlier.job["id"] == lease.job["id"] and not earlier.is_over:
                    if self._wrong("ignores_regrant"):
                        continue
                    self._lose(earlier)
            self._leases[lease.key] = lease
        threading.Thread(target=self._handle, args=(lease,), daemon=True).start()

    def _sleep(self, seconds: float) -> None:
        until = now() + seconds
        while now() < until and (not self._signals or self._wrong("waits_for_poll")):
            time.sleep(0.01)

    # Handlers, and what they may ask for.

    def _handle(self, lease: Lease) -> None:
        if lease.job["kind"] != "scripted":
            kind = "RuntimeError" if self._wrong("no_unknown_kind") else "unknown_kind"
            outcome: handler.Outcome = ("fail", {"error": {"type": kind, "message": lease.job["kind"]}})
        else:
            outcome = handler.run(lease, self)
        with self._changed:
            lease.is_running = False
            if lease.reason == "lease_lost" and not self._wrong("sends_after_loss"):
                outcome = None
            if outcome is None and not lease.is_over:
                if self._wrong("completes_settled"):
                    outcome = "complete", {"result": None}
                else:
                    lease.is_over = True
            self._changed.notify_all()
        if outcome is not None:
            verb, body = outcome if self._wrong("fails_as_it_likes") else handler.told(*outcome, lease.reason)
            self._ends.send(*self._bent(verb, lease, body))

    def _bent(self, verb: str, lease: Lease, body: dict[str, Any]) -> tuple[str, Lease, dict[str, Any]]:
        """Return an end as it is, or as the mistakes of this run make it."""
        dropped = {
            "no_error_type": "error.type", "no_error_details": "error.details", "drops_result": "result",
            "drops_retryable": "retryable", "drops_retry_after": "retry_after_seconds",
            "drops_delay": "delay_seconds", "drops_enqueue": "enqueue",
        }  # fmt: skip
        for name, member in dropped.items():
            if self._wrong(name):
                within = body.get("error", {}) if member.startswith("error.") else body
                within.pop(member.rpartition(".")[2], None)
        if self._wrong("releases_cancelled") and lease.reason == "cancelled":
            return "release", lease, {}
        if self._wrong("fails_at_shutdown") and lease.reason == "shutdown" and verb == "release":
            return "fail", lease, {"error": {"message": "shut down"}}
        if self._wrong("drops_late_result") and lease.reason == "shutdown":
            return "release", lease, {}
        if self._wrong("fails_cancelled_return") and lease.reason == "cancelled":
            return "fail", lease, {"error": {"type": "cancelled", "message": "too late"}}
        return verb, lease, body

    def report(self, event: str, lease: Lease, **members: Any) -> None:
        self._write({"event": event, **lease.token, **members})

    def progress(self, lease: Lease, step: Mapping[str, Any]) -> None:
        if not self._wrong("same_seq") or lease.seq == 0:
            lease.seq += 1
        lease.progress = {"seq": lease.seq, **step}
        if self._wrong("a_call_for_each_report"):
            time.sleep(0.05)
        if not self._wrong("progress_waits"):
            self._beats.bring_forward()

    def save(self, lease: Lease, value: Any) -> None:
        self._beats.save(lease, value)

    def submit(self, lease: Lease, body: Mapping[str, Any], name: str) -> None:
        child = dict(body) if self._wrong("no_parent") else {**body, "parent": lease.token}
        key = uuid.uuid4().hex if self._wrong("chance_child_key") else f"{lease.job['id']}:{name}"
        for pause in pauses():
            try:
                reply = self._caller.send("POST", "/v1/jobs", encode(child), idempotency_key=key)
                if not reply.is_weather:
                    return self._refuse_if_lost(lease, reply)
            except NoAnswer:
                pass
            time.sleep(pause)
        return None

    def verify(self, lease: Lease) -> None:
        if not self._wrong("never_verifies"):
            body = encode({"lease_version": lease.job["lease_version"]})
            self._refuse_if_lost(lease, self._caller.send("POST", f"/v1/jobs/{lease.job['id']}/verify", body))

    def _refuse_if_lost(self, lease: Lease, reply: Reply) -> None:
        if reply.status in (404, 409) and not self._wrong("ignores_refused_steps"):
            with self._changed:
                self._lose(lease)
            raise LeaseLost

    # When a lease is over.

    def _lose(self, lease: Lease) -> None:
        if self._wrong("ignores_loss"):
            return
        lease.tell("lease_lost")
        lease.is_over = True

    def _over(self, lease: Lease, status: str) -> None:
        with self._changed:
            if status in ("lease_lost", "not_found"):
                self._lose(lease)
            lease.is_over = True
            self._changed.notify_all()

    def _watch_clock(self) -> None:
        while True:
            time.sleep(0.02)
            if self._wrong("no_clock"):
                continue
            with self._changed:
                length = self._options["lease_seconds"] * (0.45 if self._wrong("clock_runs_fast") else 1)
                for lease in self._leases.values():
                    is_late = now() >= min(lease.renewed_at + length, lease.deadline)
                    is_counted = lease.is_running or self._wrong("clock_stops_ends")
                    if is_late and is_counted and not lease.is_over:
                        self._lose(lease)

    # The end of the process.

    def _drain(self) -> None:
        if self._wrong("exits_at_once"):
            return
        if self._wrong("waits_for_poll"):
            self._until(lambda: not self._is_asking, 60)
        if self._polling is not None:
            hang_up(self._polling)
        self._until(self._idle, self._options["drain_seconds"], is_hurried=True)
        for lease in self._held():
            if lease.is_running:
                lease.tell("shutdown")
        self._until(self._idle, 1000 if self._wrong("drains_for_ever") else self._options["grace_seconds"])
        if self._wrong("no_release"):
            return
        for lease in self._held():
            if lease.is_running:
                self._ends.send("release", lease, {})
        if not self._wrong("leaves_unread"):
            self._release_unread()
        self._until(self._idle, 1)

    def _idle(self) -> bool:
        is_idle = all(lease.is_over for lease in self._leases.values())
        return is_idle and (self._ends.is_idle or self._wrong("no_release"))

    def _until(self, condition: Callable[[], bool], seconds: float, *, is_hurried: bool = False) -> None:
        until = now() + seconds
        while now() < until and not condition():
            if is_hurried and self._signals > 1 and not self._wrong("ignores_second_signal"):
                return
            time.sleep(0.02)

    def _release_unread(self) -> None:
        try:
            reply = self._caller.send("GET", f"/v1/leases?worker_id={self._id}", timeout=3)
        except NoAnswer:
            return
        for held in reply.body.get("leases", []):
            if (held["job_id"], held["lease_version"]) not in self._leases:
                self._ends.send("release", Lease({"id": held["job_id"], **held}, now()), {})
