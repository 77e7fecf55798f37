"""The history as files: complete up to a kill, in the order of time, and read back as it was written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.checker import check
from tests.chaos.facts import HistoryError
from tests.chaos.history import Answered, Asked, Event, Healed, Listed, Log, Struck, Unanswered, merge, read

EVENTS: list[Event] = [
    Asked(1.0, "c1", "p0", "r1", "POST", "/v1/jobs", {"metadata": {"mark": "é"}}, "k"),
    Answered(2.0, "c1", 503, {"code": "unavailable"}, retry_after="1"),
    Asked(3.0, "c2", "p0", "r1", "POST", "/v1/leases", {"worker_id": "w"}),
    Unanswered(4.0, "c2", "ReadTimeout"),
    Struck(5.0, "kill of a replica", "r1"),
    Healed(6.0, "kill of a replica", "r1"),
    Listed(7.0, None, [{"id": "j"}]),
]


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "part")
    for event in EVENTS:
        log.write(event)
    log.close()
    assert read(tmp_path / "part") == EVENTS


def test_the_parts_are_merged_in_the_order_of_time_and_lines_are_the_numbers(tmp_path: Path) -> None:
    for name, events in (("one", EVENTS[::2]), ("two", EVENTS[1::2])):
        log = Log(tmp_path / name)
        for event in events:
            log.write(event)
        log.close()
    assert merge([tmp_path / "two", tmp_path / "one"], tmp_path / "whole") == EVENTS
    assert read(tmp_path / "whole") == EVENTS


def test_events_of_one_moment_keep_the_order_of_their_process(tmp_path: Path) -> None:
    log = Log(tmp_path / "part")
    events: list[Event] = [
        Asked(1.0, "z", "p0", "r1", "POST", "/v1/leases", {"worker_id": "w"}),
        Unanswered(1.0, "z", "ConnectError"),
        Asked(1.0, "a", "p0", "r1", "POST", "/v1/leases", {"worker_id": "w"}),
    ]
    for event in events:
        log.write(event)
    assert merge([tmp_path / "part"], tmp_path / "whole") == events


def test_the_log_of_a_killed_process_has_every_event_that_was_written(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.chaos.history import Log, Struck\n"
        "log = Log(Path(sys.argv[1])); number = 0\n"
        "while True:\n"
        "    number += 1; log.write(Struck(float(number), 'x' * 5000, '')); print(number, flush=True)\n"
    )
    part = tmp_path / "part"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(part)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(50)]
    os.kill(process.pid, signal.SIGKILL)
    told += [int(line) for line in process.stdout.read().splitlines() if line]
    process.wait()
    events = read(part)
    assert [event.at for event in events] == [float(number) for number in range(1, len(events) + 1)]
    assert len(events) >= told[-1]


def test_a_line_that_was_cut_in_two_counts_as_never_written(tmp_path: Path) -> None:
    part = tmp_path / "part"
    log = Log(part)
    for event in EVENTS:
        log.write(event)
    part.write_bytes(part.read_bytes()[:-5])
    assert read(part) == EVENTS[:-1]


@pytest.mark.parametrize(
    "events",
    [
        [Answered(1.0, "c1", 200)],
        [Unanswered(1.0, "c1", "ReadTimeout")],
        [Asked(1.0, "c1", "p0", "r1", "POST", "/v1/jobs/j/redrive")],
        [Asked(1.0, "c1", "p0", "r1", "PATCH", "/v1/jobs/j", {})],
        [EVENTS[2], EVENTS[2]],
    ],
)
def test_a_history_that_no_rule_covers_is_refused_instead_of_passed(events: list[Event]) -> None:
    with pytest.raises(HistoryError):
        check(events)
