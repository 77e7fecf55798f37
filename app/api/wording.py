"""msgspec's sentences in the words of JSON: a pointer, and what is wrong there."""

import re

from app.api import schemas
from app.domain.errors import InvalidRequest
from app.domain.json_tree import escape

_PATH = re.compile(r" - at `(key in )?`?\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<name>\w+)|\[(?P<index>\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_TYPE = re.compile(r"`(?P<types>[a-z]+(?: \| [a-z]+)*)`")
_PATTERN = re.compile(r"Expected `str` matching regex '(?P<pattern>.*)'")

_WORDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
    "datetime": "a time (RFC 3339)",
}


def invalid(message: str) -> InvalidRequest:
    """Return the refusal that msgspec's ``message`` means."""
    found = _PATH.search(message)
    pointer = ""
    if found is not None:
        steps = (step.group("name") or step.group("index") for step in _STEP.finditer(found.group("path")))
        pointer = "".join(f"/{step}" for step in steps if step != "...")
        message = message[: found.start()]
    for named, sentence in ((_UNKNOWN, "is not a member of this body"), (_MISSING, "is required")):
        match = named.match(message)
        if match is not None:
            return InvalidRequest(sentence, pointer=f"{pointer}/{escape(match.group('name'))}")
    return InvalidRequest(_plain(message), pointer=pointer)


def _plain(message: str) -> str:
    pattern = _PATTERN.match(message)
    if pattern is not None:
        # msgspec quotes the pattern as Python writes a text.
        rule = schemas.RULES.get(pattern.group("pattern").replace("\\\\", "\\"))
        return f"must be {rule}" if rule else "has a character that is not allowed here"
    message = message.replace(" with a timezone component", " with an offset").replace("Expected", "expected")
    message = message.replace("Invalid enum value", "there is no such choice as")
    return _TYPE.sub(_in_words, message)


def _in_words(found: re.Match[str]) -> str:
    return " or ".join(_WORDS.get(name, name) for name in found.group("types").split(" | "))
