"""Failure reports, made storable whatever a worker sent: a report that is refused is a lost one."""

import json
import re

from app.domain import json_tree
from app.domain.errors import FencepostError
from app.domain.job import Outcome

MAX_MESSAGE_BYTES = 16 * 1024
MAX_TYPE_CHARACTERS = 255
CUT_MARK = " … [cut]"

_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")


def storable_text(text: str) -> str:
    """Return ``text`` with U+0000 and lone surrogates as U+FFFD."""
    return _NOT_STORABLE.sub("\ufffd", text)


def cut_message(message: str) -> str:
    """Return a message of at most MAX_MESSAGE_BYTES of UTF-8, its mark included when it was cut."""
    encoded = storable_text(message).encode()
    if len(encoded) <= MAX_MESSAGE_BYTES:
        return encoded.decode()
    room = MAX_MESSAGE_BYTES - len(CUT_MARK.encode())
    return encoded[:room].decode(errors="ignore") + CUT_MARK


def error_text(*, type: str | None, message: str, details: str | None) -> str:  # noqa: A002
    """Return the JSON text of an error object; ``details`` is JSON text, None means null."""
    fields = {
        "type": None if type is None else storable_text(type)[:MAX_TYPE_CHARACTERS],
        "message": cut_message(message),
    }
    head = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return f'{head[:-1]},"details":{"null" if details is None else details}}}'


def clock_error(outcome: Outcome) -> str:
    """Return the error of an attempt that a clock ended, as JSON text."""
    message = {
        Outcome.LEASE_EXPIRED: "No heartbeat came before the lease ran out.",
        Outcome.STALLED: "No progress was reported within progress_timeout_seconds.",
        Outcome.DEADLINE_EXCEEDED: "The attempt ran longer than max_runtime_seconds.",
    }[outcome]
    return error_text(type=outcome.value, message=message, details=None)


def dropped_details(reason: str) -> str:
    """Return the marker object that stands for details which could not be kept."""
    return json.dumps({"dropped": True, "reason": reason}, separators=(",", ":"))


def repaired_report(text: str) -> str:
    """Return the JSON text of a fail body in which only well-formed things are left.

    Details that are not acceptable as opaque JSON become the marker object; NUL and lone surrogates in
    the error's texts become U+FFFD. Everything else is as it was, to be judged by the ordinary rules.
    Raises MalformedJson.
    """
    return json_tree.render(_repaired(json_tree.parse(text)))


def _repaired(tree: json_tree.Tree) -> json_tree.Tree:
    if isinstance(tree, json_tree.Members):
        return json_tree.Members((name, _repaired_member(name, value)) for name, value in tree)
    if isinstance(tree, list) and not isinstance(tree, json_tree.Members):
        return [_repaired(item) for item in tree]
    return tree


def _repaired_member(name: str, value: json_tree.Tree) -> json_tree.Tree:
    if name == "error" and isinstance(value, json_tree.Members):
        return json_tree.Members((inner, _repaired_error(inner, part)) for inner, part in value)
    if name == "items":
        return _repaired(value)
    return value


def _repaired_error(name: str, value: json_tree.Tree) -> json_tree.Tree:
    if name == "details":
        try:
            json_tree.check(value, opaque=True)
        except FencepostError as refusal:
            return json_tree.parse(dropped_details(refusal.detail))
        return value
    return storable_text(value) if isinstance(value, str) else value
