"""Strict JSON as a tree that keeps every token: what msgspec cannot tell is told here.

The fast path never comes here: msgspec checks the syntax and hands opaque members on as text. This
module looks closer when a text could hold something the contract refuses (see ``needs_a_look``), and
gives fingerprints their canonical form.

    tree   = None | bool | str | Number | Constant | list[tree] | Members
    Number = the digits as sent          Constant = NaN, Infinity, -Infinity
    Members = [(name, tree), ...]        doubled names kept, in order
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from app.domain.errors import MalformedJson, NotStrictJson

MAX_DEPTH = 100

# Members whose value is the caller's own: a name that stands twice inside them is passed on.
OPAQUE_MEMBERS = frozenset({"payload", "result", "checkpoint", "details"})

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_STRUCTURE = re.compile(_STRING + r"|[\[\]{}]", re.DOTALL)
_NAME = re.compile(r"(" + _STRING + r")(\s*:)?", re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Number:
    token: str


@dataclass(frozen=True, slots=True)
class Constant:
    token: str


class Members(list[tuple[str, "Tree"]]):
    """The members of an object, doubled names included."""


Tree = None | bool | str | Number | Constant | list["Tree"] | Members


def needs_a_look(text: str) -> bool:
    """Tell whether well-formed JSON may hold what only ``check`` can judge.

    False is certain: no surrogate escape, at most MAX_DEPTH brackets, no member name twice anywhere
    and none written with escapes.
    """
    if _bracket_count(text) > MAX_DEPTH or _SURROGATE_ESCAPE.search(text):
        return True
    names = _names(text)
    return len(set(names)) != len(names) or any("\\" in name for name in names)


def _names(text: str) -> list[str]:
    """Return the member names of well-formed JSON as they are written, without their quotes."""
    if "\\" in text:
        return [string[1:-1] for string, colon in _NAME.findall(text) if colon]
    # Without escapes every other piece between quotes is a string; half the time of the expression.
    pieces = text.split('"')
    return [
        string
        for string, after in zip(pieces[1::2], pieces[2::2], strict=True)
        if after[:1] == ":" or after.lstrip()[:1] == ":"
    ]


def items_need_a_look(whole_list: str, items: Sequence[str]) -> bool:
    """Do as ``needs_a_look`` for each of ``items``, of which ``whole_list`` is the text.

    Most lists have items with the same members in the same order, and one look tells: where each item begins
    with the first name, that name stands only at the beginning of a round of names, and there are as many
    rounds as items, each item has each name once.
    """
    if not items:
        return False
    names = _names(whole_list)
    count = len(names) // len(items)
    one_round = names[:count]
    is_regular = (
        count > 0
        and names == one_round * len(items)
        and len(set(one_round)) == count
        and not any("\\" in name for name in one_round)
        and all(item.startswith(f'{{"{one_round[0]}"') for item in items)
        and (_bracket_count(whole_list) <= len(items) + 1 or max(map(_bracket_count, items)) <= MAX_DEPTH)
        and not _SURROGATE_ESCAPE.search(whole_list)
    )
    return not is_regular and any(map(needs_a_look, items))


def _bracket_count(text: str) -> int:
    return text.count("[") + text.count("{")


_read = json.JSONDecoder(
    parse_int=Number, parse_float=Number, parse_constant=Constant, object_pairs_hook=Members
).decode


def parse(text: str) -> Tree:
    """Return the tree of ``text``; values nested deeper than MAX_DEPTH + 20 are cut to null.

    The margin leaves ``check`` something to refuse: an opaque value lies a few levels inside its body.
    Raises MalformedJson.
    """
    try:
        tree: Tree = _read(_prune(text, depth=MAX_DEPTH + 20))
    except ValueError as error:
        raise MalformedJson("The body is not JSON.") from error
    return tree


def _prune(text: str, *, depth: int) -> str:
    """Replace every array or object below ``depth`` by null, so that no parser recurses without bound."""
    if text.count("[") + text.count("{") <= depth:
        return text
    level, kept_to, parts = 0, 0, []
    for token in _STRUCTURE.finditer(text):
        character = token.group()
        if character in ("[", "{"):
            level += 1
            if level == depth + 1:
                parts.append(text[kept_to : token.start()] + "null")
        elif character in ("]", "}"):
            if level == depth + 1:
                kept_to = token.end()
            level -= 1
    return "".join(parts) + text[kept_to:] if level <= depth else "".join(parts)


def check(tree: Tree, *, opaque: bool = False) -> None:
    """Refuse what the contract calls not strict; the tree is a whole body, or one opaque value.

    Raises NotStrictJson with a pointer: NaN and Infinity, lone surrogates, opaque values nested over
    MAX_DEPTH levels, and (outside opaque values) a member name that stands twice.
    """
    # (value, pointer, depth inside the opaque value or None outside)
    stack: list[tuple[Tree, str, int | None]] = [(tree, "", 0 if opaque else None)]
    while stack:
        value, pointer, depth = stack.pop()
        if isinstance(value, Constant):
            _refuse(f"{value.token} is not a JSON number", pointer)
        if isinstance(value, str):
            _check_text(value, pointer)
        elif isinstance(value, (list, Members)):
            inner = None if depth is None else depth + 1
            if inner is not None and inner > MAX_DEPTH:
                _refuse(f"nested over {MAX_DEPTH} levels", pointer)
            if isinstance(value, Members):
                if depth is None:
                    _check_doubles(value, pointer)
                for name, member in value:
                    _check_text(name, pointer)
                    enters = inner is None and name in OPAQUE_MEMBERS
                    stack.append((member, f"{pointer}/{escape(name)}", 0 if enters else inner))
            else:
                stack.extend((item, f"{pointer}/{index}", inner) for index, item in enumerate(value))


def _check_text(text: str, pointer: str) -> None:
    if _LONE_SURROGATE.search(text):
        _refuse("a lone surrogate is not text", pointer)


def _check_doubles(members: Members, pointer: str) -> None:
    seen: set[str] = set()
    for name, _ in members:
        _check_text(name, pointer)
        if name in seen:
            _refuse(f"the member {name[:128]!r} stands twice", f"{pointer}/{escape(name)}")
        seen.add(name)


def _refuse(message: str, pointer: str) -> NoReturn:
    raise NotStrictJson(message, pointer=pointer)


def escape(name: str) -> str:
    """Write a member name as one step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def render(tree: Tree) -> str:
    """Write the tree as JSON text with the tokens as they came, order and doubles kept."""
    if isinstance(tree, Members):
        return "{" + ",".join(f"{json.dumps(name)}:{render(value)}" for name, value in tree) + "}"
    return _render_rest(tree, render_inner=render)


def canonical(tree: Tree) -> str:
    """Write the tree so that equal values are equal texts.

    Member order and white space do not count, of a doubled name the last one does; 1, 1.0, true and
    "1" stay four different values.
    """
    if isinstance(tree, Members):
        last = sorted(dict(tree).items())
        return "{" + ",".join(f"{json.dumps(name)}:{canonical(value)}" for name, value in last) + "}"
    return _render_rest(tree, render_inner=canonical)


def _render_rest(tree: Tree, *, render_inner: Callable[[Tree], str]) -> str:
    if isinstance(tree, list) and not isinstance(tree, Members):
        return "[" + ",".join(map(render_inner, tree)) + "]"
    if isinstance(tree, (Number, Constant)):
        return tree.token
    return json.dumps(tree)
