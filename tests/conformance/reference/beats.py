"""Heartbeats of the reference client: one call for all held leases, beside the handlers."""

import random
import threading
from collections.abc import Callable
from typing import Any

from tests.conformance.reference.calls import Caller, NoAnswer, Reply, encode
from tests.conformance.reference.leases import Checkpoint, Lease, ValueRefused, now
from tests.conformance.reference.wrongs import Wrongs


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
            self._hurry.wait(self._third * random.uniform(0.9, 1))
            self._hurry.clear()
            leases = self._held()
            if not leases or self._wrong("no_heartbeat"):
                continue
            groups = [[lease] for lease in leases] if self._wrong("beats_one_by_one") else [leases]
            for group in groups:
                self._beat(group)

    def _beat(self, leases: list[Lease]) -> None:
        items, sent = [], []
        for lease in leases:
            if self._wrong("no_heartbeat_after_cancel") and lease.reason == "cancelled":
                continue
            item: dict[str, Any] = dict(lease.token)
            if self._wrong("counts_in_the_timer"):
                self._timer_seq += 1
                lease.progress = {"seq": self._timer_seq}
            progress, checkpoint = lease.progress, lease.checkpoint
            if progress is not None:
                item["progress"] = progress
            if checkpoint is not None:
                item["checkpoint"] = checkpoint.value
            items.append(item)
            sent.append((lease, progress, checkpoint))
        if not items:
            return
        sent_at = now()
        try:
            reply = self._caller.send(
                "POST",
                "/v1/leases/heartbeat",
                encode({"items": items}),
                timeout=self._third,
                with_key=not self._wrong("no_key_on_heartbeats"),
            )
        except NoAnswer:
            reply = Reply(503, None, 0)
        if reply.is_weather:
            if self._wrong("drops_on_failed_heartbeat"):
                for lease in leases:
                    lease.tell("lease_lost")
                    lease.is_over = True
            threading.Timer(self._third / 3, self.bring_forward).start()
            return
        if reply.status in (413, 422):
            self._refuse(sent)
            return
        for (lease, progress, checkpoint), result in zip(sent, reply.body["results"], strict=True):
            self._renewed(lease, result, sent_at)
            if lease.progress is progress:
                lease.progress = None
            if checkpoint is not None and result["status"] == "ok":
                lease.checkpoint = None
                checkpoint.answered.set()

    def _renewed(self, lease: Lease, result: dict[str, Any], sent_at: float) -> None:
        if result["status"] == "ok":
            lease.renewed_at = sent_at
            if result["cancel_requested"] and not self._wrong("ignores_cancel"):
                lease.tell("cancelled")
        elif not self._wrong("ignores_loss") and not (
            self._wrong("ignores_not_found") and result["status"] == "not_found"
        ):
            lost = self._held() if self._wrong("loses_all") else [lease]
            for each in lost:
                each.tell("lease_lost")
                each.is_over = True

    def _refuse(self, sent: list[tuple[Lease, Any, Checkpoint | None]]) -> None:
        """Tell the handlers whose checkpoint was in a refused call, and beat without it."""
        if self._wrong("repeats_refused_checkpoint"):
            return
        for lease, _, checkpoint in sent:
            if checkpoint is not None:
                lease.checkpoint = None
                checkpoint.error = ValueRefused("the checkpoint is not taken")
                checkpoint.answered.set()
        self.bring_forward()
