"""No order of a job's commit and a poll's wait loses the wake-up, whichever replicas they are on."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from itertools import permutations
from typing import cast

import msgspec
import pytest

from app.api import schemas
from app.operations.context import Context
from app.operations.polls import Polls
from app.operations.wakeups import ANNOUNCE_SECONDS, FORGET_SECONDS, RECENT_SECONDS, Wakeups
from app.store import notifications
from app.store.connections import Connector
from app.store.engine import Connection
from app.store.notifications import MAX_MESSAGE_BYTES, listen, split
from tests.support.waiting import DEADLINE_SECONDS


class RecordedPolls:
    """Stands for the polls of one replica."""

    def __init__(self) -> None:
        self.queues: list[str] = []
        self.woken: list[tuple[str, int | None]] = []
        self.all_woken_count = 0

    def wake(self, queue: str, count: int | None) -> None:
        self.woken.append((queue, count))

    def wake_all(self) -> None:
        self.all_woken_count += 1

    def parked_queues(self) -> list[str]:
        return self.queues


class Replica:
    """One process's wake-ups, with a clock that is turned by hand."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.now = 1000.0
        self.polls = RecordedPolls()
        self.wakeups = Wakeups(clock=lambda: self.now)
        self.wakeups.attach(cast("Polls", self.polls))

    def park(self, *queues: str) -> None:
        self.polls.queues = list(queues)
        self.wakeups.announce_parked(queues)

    def hear(self, messages: Iterable[str]) -> None:
        for message in messages:
            self.wakeups.receive(message)


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was sent through the database, which is left out."""
    sent: list[str] = []

    async def notify(_conn: Connection, messages: Sequence[str]) -> None:
        sent.extend(messages)

    monkeypatch.setattr(notifications, "notify", notify)
    return sent


@pytest.fixture
def here(context: Context, posted: list[str]) -> Replica:
    return Replica(context)


@pytest.fixture
def there(context: Context, posted: list[str]) -> Replica:
    return Replica(context)


async def mail_of(replica: Replica, posted: list[str]) -> list[str]:
    """Return what a replica has to say by now, and take it out of its outbox."""
    if not replica.wakeups._has_mail.is_set():
        return []
    posted.clear()
    await replica.wakeups.send(replica.context)
    return list(posted)


async def test_work_wakes_the_polls_of_its_own_replica_at_once(here: Replica) -> None:
    here.wakeups.jobs_ready({"a": 2, "b": 1})
    assert here.polls.woken == [("a", 2), ("b", 1)]


async def test_work_that_no_other_replica_waits_for_is_not_announced(
    here: Replica, posted: list[str]
) -> None:
    here.wakeups.jobs_ready({"a": 2})
    assert await mail_of(here, posted) == []


async def test_work_wakes_a_poll_that_waits_on_another_replica(
    here: Replica, there: Replica, posted: list[str]
) -> None:
    there.park("a", "b")
    here.hear(await mail_of(there, posted))
    here.wakeups.jobs_ready({"a": 2, "unwanted": 1})
    there.hear(await mail_of(here, posted))
    assert there.polls.woken == [("a", 2)]


async def test_a_waiter_that_is_announced_late_hears_of_recent_work(
    here: Replica, there: Replica, posted: list[str]
) -> None:
    here.wakeups.jobs_ready({"a": 1})
    here.now += RECENT_SECONDS - 0.1
    there.park("a")
    here.hear(await mail_of(there, posted))
    there.hear(await mail_of(here, posted))
    assert there.polls.woken == [("a", None)]


async def test_work_of_long_ago_is_left_to_the_claim_of_the_waiter(
    here: Replica, there: Replica, posted: list[str]
) -> None:
    here.wakeups.jobs_ready({"a": 1})
    here.now += RECENT_SECONDS + 0.1
    there.park("a")
    here.hear(await mail_of(there, posted))
    assert await mail_of(here, posted) == []


async def test_no_order_of_events_loses_a_wake_up(context: Context, posted: list[str]) -> None:
    for order in permutations(["job", "park", "deliver the wait", "deliver the work"]):
        here, there = Replica(context), Replica(context)
        for event in (*order, "deliver the wait", "deliver the work"):
            match event:
                case "job":
                    here.wakeups.jobs_ready({"a": 1})
                case "park":
                    there.park("a")
                case "deliver the wait":
                    here.hear(await mail_of(there, posted))
                case _:
                    there.hear(await mail_of(here, posted))
        # Who hears of the waiter before the job knows the number.
        assert [queue for queue, _ in there.polls.woken] == ["a"], order


async def test_a_replica_that_has_not_been_heard_of_waits_no_more(
    here: Replica, there: Replica, posted: list[str]
) -> None:
    there.park("a")
    here.hear(await mail_of(there, posted))
    here.now += FORGET_SECONDS + 0.1
    here.wakeups.jobs_ready({"a": 1})
    assert await mail_of(here, posted) == []


async def test_what_is_waited_for_is_said_again_before_it_is_forgotten(
    here: Replica, there: Replica, posted: list[str]
) -> None:
    assert 2 * ANNOUNCE_SECONDS < FORGET_SECONDS
    there.park("a")
    here.hear(await mail_of(there, posted))
    here.now += FORGET_SECONDS - 0.1
    assert there.wakeups.announce_all() == ANNOUNCE_SECONDS
    here.hear(await mail_of(there, posted))
    here.now += FORGET_SECONDS - 0.1
    here.wakeups.jobs_ready({"a": 1})
    assert len(await mail_of(here, posted)) == 1


async def test_own_messages_are_ignored(here: Replica, posted: list[str]) -> None:
    here.park("a")
    here.hear(await mail_of(here, posted))
    here.wakeups.jobs_ready({"a": 1})
    assert await mail_of(here, posted) == []


async def test_a_message_of_an_unknown_kind_is_ignored(here: Replica, posted: list[str]) -> None:
    here.hear(["cafe0000 %a b", "cafe0000 ", "cafe0000", "", " ", "cafe0000 +", "cafe0000 !"])
    assert here.polls.woken == []
    assert await mail_of(here, posted) == []


async def test_who_asks_is_told_what_is_waited_for(here: Replica, there: Replica, posted: list[str]) -> None:
    there.polls.queues = ["a", "b"]
    here.wakeups.listening()
    there.hear(await mail_of(here, posted))
    here.hear(await mail_of(there, posted))
    here.wakeups.jobs_ready({"b": 1})
    there.hear(await mail_of(here, posted))
    assert there.polls.woken == [("b", 1)]


async def test_a_channel_that_was_opened_anew_catches_up(here: Replica, posted: list[str]) -> None:
    here.polls.queues = ["a"]
    here.wakeups.listening()
    assert here.polls.all_woken_count == 1
    said = [message.split(" ", 1)[1] for message in await mail_of(here, posted)]
    assert said == ["?", "+a"]


async def test_mail_of_many_commits_is_sent_in_one_statement(
    here: Replica, there: Replica, posted: list[str]
) -> None:
    there.park("a", "b")
    here.hear(await mail_of(there, posted))
    for _ in range(5):
        here.wakeups.jobs_ready({"a": 1, "b": 1})
    assert [message.split(" ", 1)[1] for message in await mail_of(here, posted)] == ["!a =5 b =5"]


async def test_work_of_a_number_that_is_not_known_has_none_together_with_other_work(
    here: Replica, there: Replica, posted: list[str]
) -> None:
    here.wakeups.jobs_ready({"a": 1, "b": 1})
    there.park("a", "b")
    here.hear(await mail_of(there, posted))
    here.wakeups.jobs_ready({"a": 3})
    there.hear(await mail_of(here, posted))
    assert there.polls.woken == [("a", None), ("b", None)]


async def test_a_replica_before_counts_takes_them_for_queues_that_nobody_waits_for(
    here: Replica, there: Replica, posted: list[str]
) -> None:
    there.park("a", "b")
    here.hear(await mail_of(there, posted))
    here.wakeups.jobs_ready({"a": 2, "b": 1})
    [message] = await mail_of(here, posted)
    # What it does with a message: the words behind the mark are the queues.
    queues = message.partition(" ")[2][1:].split()
    assert {"a", "b"} <= set(queues)
    for other in set(queues) - {"a", "b"}:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(other, schemas.Name)


async def test_a_count_that_makes_no_sense_is_passed_over(here: Replica) -> None:
    here.hear(["cafe0000 !=3 a =x b =2 =4 c"])
    assert here.polls.woken == [("a", None), ("b", 4), ("c", None)]


async def test_memory_of_recent_work_is_bounded(here: Replica) -> None:
    for number in range(10_000):
        here.wakeups.jobs_ready({f"old{number}": 1})
    here.now += RECENT_SECONDS + 1
    here.wakeups.jobs_ready({"new": 1})
    here.wakeups.announce_all()
    assert len(here.wakeups._recent) == 1


async def test_memory_of_waiters_elsewhere_is_bounded(here: Replica) -> None:
    here.wakeups.receive("cafe0000 +" + " ".join(f"queue{number}" for number in range(500)))
    here.now += FORGET_SECONDS + 1
    here.wakeups.receive("cafe0000 +new")
    here.wakeups.announce_all()
    assert list(here.wakeups._remote) == ["new"]


def test_names_are_split_into_messages_that_notify_can_carry() -> None:
    names = [f"{number:04}".ljust(128, "x") for number in range(200)]
    messages = list(split("cafe0000 !", names))
    assert len(messages) > 1
    # PostgreSQL takes less than 8,000 bytes; the sender and the mark come on top of the names.
    assert all(len(message) < MAX_MESSAGE_BYTES + 20 < 8000 for message in messages)
    assert [name for message in messages for name in message.removeprefix("cafe0000 !").split()] == names


def test_no_names_make_no_message() -> None:
    assert list(split("!", [])) == []


async def test_messages_travel_through_postgresql(context: Context, database_url: str) -> None:
    one, other = Replica(context), Replica(context)
    names = [f"{number:04}".ljust(128, "x") for number in range(200)]
    other.park(*names)
    async with asyncio.timeout(DEADLINE_SECONDS), aclosing(listen(Connector(database_url))) as messages:
        assert await anext(messages) is None
        await other.wakeups.send(context)
        heard = 0
        while heard < len(names):
            message = await anext(messages)
            assert message is not None
            one.wakeups.receive(message)
            heard = len(one.wakeups._remote)
        one.wakeups.jobs_ready({names[150]: 1})
        await one.wakeups.send(context)
        message = await anext(messages)
        assert message is not None
        other.wakeups.receive(message)
    assert other.polls.woken == [(names[150], 1)]
