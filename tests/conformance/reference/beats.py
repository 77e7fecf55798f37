"""Heartbeats of the reference client: one call for all held leases, beside the handlers."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.conformance.reference.calls import Caller, NoAnswer, Reply, encode
from tests.conformance.reference.leases import Checkpoint, Lease, ValueRefused, now
from tests.conformance.reference.wrongs import Wrongs

# A lease, what is said of it, and the checkpoint in that.
Sent = tuple[Lease, dict[str, Any], Checkpoint | None]


class Beats:
    """held gives the leases to renew, as they are at that time."""

    def __init__(
        self, caller: Caller, wrongs: Wrongs, lease_seconds: float, held: Callable[[], list[Lease]]
    ) -> None:
        self._caller = caller
        self._wrong = wrongs
        self._third = lease_seconds / 3
        if wrongs("beats_rarely"):
            self._third = lease_seconds * 0.8
        if wrongs("beats_often"):
            self._third = lease_seconds / 20
        self._held = held
        self._hurry = threading.Event()
        self._timer_seq = 0

    def bring_forward(self) -> None:
        self._hurry.set()

    def save(self, lease: Lease, value: Any) -> None:
        """Store a checkpoint; return when it is. Raises LeaseLost and ValueRefused."""
        lease.checkpoint = checkpoint = Checkpoint(value)
        self.bring_forward()
        if self._wrong("checkpoint_without_waiting"):
            return
        checkpoint.answered.wait()
        if checkpoint.error is not None:
            raise checkpoint.error

    def run(self) -> None:
        while True:
            if self._hurry.wait(self._third * random.uniform(0.9, 1)):
                # What follows at once goes along.
                time.sleep(0.01 if self._wrong("a_call_for_each_report") else 0.3)
            self._hurry.clear()
            leases = self._held()
            if not leases or self._wrong("no_heartbeat"):
                continue
            groups = [[lease] for lease in leases] if self._wrong("beats_one_by_one") else [leases]
            for group in groups:
                self._beat(group)

    def _beat(self, leases: list[Lease]) -> None:
        if self._wrong("no_heartbeat_once_told"):
            leases = [lease for lease in leases if lease.reason is None]
        sent = [self._item(lease) for lease in leases]
        if not sent:
            return
        sent_at = now()
        reply = self._send([item for _, item, _ in sent])
        if reply is None or reply.is_weather:
            if self._wrong("drops_on_failed_heartbeat"):
                self._drop(leases)
            timer = threading.Timer(self._third / 3, self.bring_forward)
            timer.daemon = True
            timer.start()
        elif reply.status in (400, 413, 422):
            self._refuse(sent)
        else:
            for entry, result in zip(sent, reply.body["results"], strict=True):
                self._answered(entry, result, sent_at)

    def _item(self, lease: Lease) -> Sent:
        item: dict[str, Any] = dict(lease.token)
        if self._wrong("counts_in_the_timer"):
            self._timer_seq += 1
            lease.progress = {"seq": self._timer_seq}
        if lease.progress is not None:
            item["progress"] = lease.progress
        if lease.checkpoint is not None:
            item["checkpoint"] = lease.checkpoint.value
        return lease, item, lease.checkpoint

    def _send(self, items: list[dict[str, Any]]) -> Reply | None:
        timeout = 60 if self._wrong("waits_for_heartbeats") else self._third
        try:
            return self._caller.send(
                "POST",
                "/v1/leases/heartbeat",
                encode({"items": items}),
                timeout=timeout,
                with_key=not self._wrong("no_key_on_heartbeats"),
            )
        except NoAnswer:
            return None

    def _answered(self, entry: Sent, result: dict[str, Any], sent_at: float) -> None:
        lease, item, checkpoint = entry
        if lease.progress is item.get("progress"):
            lease.progress = None
        if result["status"] == "ok":
            lease.renewed_at = now() if self._wrong("renews_at_the_answer") else sent_at
            if result["cancel_requested"] and not self._wrong("ignores_cancel"):
                lease.tell("cancelled")
            if checkpoint is not None:
                lease.checkpoint = None
                checkpoint.answered.set()
        elif not self._wrong("ignores_loss") and not (
            self._wrong("ignores_not_found") and result["status"] == "not_found"
        ):
            self._drop(self._held() if self._wrong("loses_all") else [lease])

    @staticmethod
    def _drop(leases: list[Lease]) -> None:
        for lease in leases:
            lease.tell("lease_lost")
            lease.is_over = True

    def _refuse(self, sent: list[Sent]) -> None:
        """Tell the handlers whose checkpoint was in a refused call, and beat without it."""
        if self._wrong("repeats_refused_checkpoint"):
            return
        for lease, _, checkpoint in sent:
            if checkpoint is not None:
                lease.checkpoint = None
                checkpoint.error = ValueRefused("the checkpoint is not taken")
                checkpoint.answered.set()
        self.bring_forward()
