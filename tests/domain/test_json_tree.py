"""Strict JSON that keeps every token."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import json_tree
from app.domain.errors import MalformedJson, NotStrictJson
from app.domain.json_tree import Constant, Members, Number, canonical, check, needs_a_look, parse, render

# Names from a small alphabet, so that some stand twice and some need escapes.
names = st.text(alphabet='ab"\\/~é\U0001f600\ud800\udc00\x00', max_size=2)
texts = st.text(alphabet='ab{}[]":,\\\né\U0001f600\ud800\udbff\udc00', max_size=4)
numbers = st.sampled_from(
    ["0", "-0", "1", "1.0", "1e400", "-1.5E+3", "9007199254740993", "0.10", "1" * 5000]
).map(Number)
trees: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | texts | numbers | st.just(Constant("NaN")),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(names, inner), max_size=3).map(Members),
    max_leaves=12,
)


def write(tree: Any, dice: random.Random) -> str:
    """Write a tree as JSON in one of the ways in which a client may: white space and escapes at will."""

    def space() -> str:
        return dice.choice(["", "", "", " ", "\n", "\t "])

    def string(text: str) -> str:
        pieces = []
        for character in text:
            is_surrogate = "\ud800" <= character <= "\udfff"
            if is_surrogate or character in '"\\\n\x00' or dice.random() < 0.2:
                pieces.append("".join(f"\\u{unit:04x}" for unit in _utf16(character)))
            else:
                pieces.append(character)
        return '"' + "".join(pieces) + '"'

    if isinstance(tree, Members):
        members = [f"{string(name)}{space()}:{space()}{write(value, dice)}" for name, value in tree]
        return "{" + space() + f"{space()},{space()}".join(members) + space() + "}"
    if isinstance(tree, list):
        return "[" + space() + f"{space()},{space()}".join(write(item, dice) for item in tree) + space() + "]"
    if isinstance(tree, (Number, Constant)):
        return tree.token
    return string(tree) if isinstance(tree, str) else json.dumps(tree)


def _utf16(character: str) -> list[int]:
    encoded = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(encoded[i : i + 2]) for i in range(0, len(encoded), 2)]


def is_refused(tree: json_tree.Tree, *, opaque: bool) -> bool:
    try:
        check(tree, opaque=opaque)
    except NotStrictJson:
        return True
    return False


def has_constant(tree: Any) -> bool:
    if isinstance(tree, Members):
        return any(has_constant(value) for _, value in tree)
    if isinstance(tree, list):
        return any(has_constant(item) for item in tree)
    return isinstance(tree, Constant)


@given(trees, st.randoms(use_true_random=False))
def test_a_text_that_needs_no_look_is_never_one_that_would_be_refused(tree: Any, dice: random.Random) -> None:
    text = write(tree, dice)
    # NaN is no JSON: msgspec has refused it before anybody asks.
    if not has_constant(tree) and not needs_a_look(text):
        check(parse(text))
        check(parse(text), opaque=True)


@given(st.integers(1, 110), st.booleans())
def test_a_deep_text_is_always_looked_at(depth: int, in_objects: bool) -> None:
    text = '{"a":' * depth + "1" + "}" * depth if in_objects else "[" * depth + "]" * depth
    if not needs_a_look(text):
        check(parse(text), opaque=True)
    assert needs_a_look(text) or depth <= 100


@pytest.mark.parametrize(
    "text",
    [
        r'"\ud800"',
        r'"\uDFFF"',
        r'{"a":1,"a":2}',
        r'{"a":1,"\u0061":2}',
        r'{"a"  :1,"a"' + "\n:2}",
        r'{"payload":"x","b":{"payload":1}}',
        "[" * 101 + "]" * 101,
    ],
)
def test_what_only_check_can_judge_is_looked_at(text: str) -> None:
    assert needs_a_look(text)


@pytest.mark.parametrize(
    "text",
    [r'{"kind":"a","payload":{"a\"b":"\\","c":[1,2]}}'.replace(r"a\"b", "ab"), '["a","a"]', '{"a":"b"}', "1"],
)
def test_ordinary_texts_need_no_look(text: str) -> None:
    assert not needs_a_look(text)


def to_python(tree: Any) -> Any:
    """Return what a reader makes of a tree, tokens and doubled names kept."""
    if isinstance(tree, Members):
        return ("members", [(name, to_python(value)) for name, value in tree])
    return [to_python(item) for item in tree] if isinstance(tree, list) else tree


def joined(text: str) -> str:
    """Join surrogate pairs, as every JSON reader does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@given(trees, st.randoms(use_true_random=False))
def test_rendering_keeps_tokens_order_and_doubled_names(tree: Any, dice: random.Random) -> None:
    parsed = parse(write(tree, dice))
    assert to_python(parse(render(parsed))) == to_python(parsed)


@pytest.mark.parametrize("token", ["9007199254740993", "1e400", "0.10", "-0", "1E+2", "0.1e-7", "1" * 5000])
def test_rendering_keeps_the_digits_of_a_number(token: str) -> None:
    assert render(parse(f"[{token}]")) == f"[{token}]"


def shuffled(tree: Any, dice: random.Random) -> Any:
    """Reorder members; where a name is doubled, only the last one is kept, for it alone counts."""
    if isinstance(tree, Members):
        members = [(name, shuffled(value, dice)) for name, value in dict(tree).items()]
        dice.shuffle(members)
        return Members(members)
    return [shuffled(item, dice) for item in tree] if isinstance(tree, list) else tree


@given(trees, st.randoms(use_true_random=False))
def test_member_order_white_space_and_escapes_do_not_count(tree: Any, dice: random.Random) -> None:
    parsed = parse(write(tree, dice))
    assert canonical(parse(write(shuffled(parsed, dice), dice))) == canonical(parsed)


def meaning(tree: Any) -> Any:
    if isinstance(tree, Members):
        return ("members", {name: meaning(value) for name, value in tree})
    if isinstance(tree, list):
        return [meaning(item) for item in tree]
    return (type(tree), tree)


@given(trees, trees, st.randoms(use_true_random=False))
def test_two_values_are_canonically_equal_only_when_they_mean_the_same(
    one: Any, other: Any, dice: random.Random
) -> None:
    first, second = parse(write(one, dice)), parse(write(other, dice))
    assert (canonical(first) == canonical(second)) == (meaning(first) == meaning(second))


def test_one_and_its_lookalikes_are_four_different_values() -> None:
    assert len({canonical(parse(text)) for text in ("1", "1.0", "true", '"1"')}) == 4


def test_of_a_doubled_name_the_last_value_counts() -> None:
    assert canonical(parse('{"a":1,"b":2,"a":3}')) == canonical(parse('{"b":2,"a":3}'))
    assert canonical(parse('{"a":1,"a":3}')) != canonical(parse('{"a":3,"a":1}'))


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_hundred_levels_are_accepted_and_one_more_is_refused(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    check(parse(opening * 99 + ("[]" if opening == "[" else "{}") + closing * 99), opaque=True)
    with pytest.raises(NotStrictJson, match="nested over 100 levels"):
        check(parse(opening * 100 + ("[]" if opening == "[" else "{}") + closing * 100), opaque=True)


def test_the_levels_of_an_opaque_value_are_counted_from_its_own_root() -> None:
    check(parse('{"jobs":[{"payload":' + "[" * 100 + "]" * 100 + "}]}"))
    with pytest.raises(NotStrictJson) as refused:
        check(parse('{"jobs":[{"payload":' + "[" * 101 + "]" * 101 + "}]}"))
    assert (refused.value.pointer or "").startswith("/jobs/0/payload/0/0")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_nesting_of_twenty_thousand_is_cut_and_refused_not_recursed_into(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    text = '{"payload":' + opening * 20_000 + "1" + closing * 20_000 + ',"kind":"a"}'
    tree = parse(text)
    assert isinstance(tree, Members)
    assert dict(tree)["kind"] == "a"
    with pytest.raises(NotStrictJson, match="nested over 100 levels"):
        check(tree)


def test_brackets_inside_strings_are_no_nesting() -> None:
    text = json.dumps({"payload": ["[" * 20_000 + '"\\', "}" * 500]})
    check(parse(text))
    assert json.loads(render(parse(text))) == json.loads(text)


def test_pruning_keeps_what_stands_beside_the_deep_value() -> None:
    deep = "[" * 200 + "]" * 200
    tree = parse(f'{{"a":1,"b":{deep},"c":[{deep},2],"d":3}}')
    assert isinstance(tree, Members)
    assert [name for name, _ in tree] == ["a", "b", "c", "d"]
    assert dict(tree)["d"] == Number("3")


@pytest.mark.parametrize("text", ["", "{", "[1,]", "nul", '{"a" 1}', "[" * 20_000, '"' + "a" * 100, "1 2"])
def test_what_is_no_json_is_malformed(text: str) -> None:
    with pytest.raises(MalformedJson):
        parse(text)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_constants_that_are_no_numbers_are_refused_by_name(constant: str) -> None:
    with pytest.raises(NotStrictJson) as refused:
        check(parse(f'{{"payload":[1,{constant}]}}'))
    assert refused.value.pointer == "/payload/1"
    assert constant in refused.value.detail


@pytest.mark.parametrize("text", [r'["\ud800"]', r'["a\udc00b"]', r'[{"\udfff":1}]', r'["\udc00\ud800"]'])
def test_lone_surrogates_are_refused_in_values_and_in_names(text: str) -> None:
    with pytest.raises(NotStrictJson, match="lone surrogate"):
        check(parse(text), opaque=True)
    with pytest.raises(NotStrictJson, match="lone surrogate"):
        check(parse(text))


def test_a_surrogate_pair_is_text() -> None:
    check(parse(r'"\ud83d\ude00"'), opaque=True)


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ('{"kind":1,"kind":2}', "/kind"),
        ('{"metadata":{"a/b~":"1","a/b~":"2"}}', "/metadata/a~1b~0"),
        ('{"jobs":[{},{"queue":1,"queue":1}]}', "/jobs/1/queue"),
        ('{"payload":1,"payload":2}', "/payload"),
    ],
)
def test_a_doubled_name_outside_opaque_values_is_refused_with_a_pointer(text: str, pointer: str) -> None:
    with pytest.raises(NotStrictJson) as refused:
        check(parse(text))
    assert refused.value.pointer == pointer


@pytest.mark.parametrize("member", ["payload", "result", "checkpoint", "details"])
def test_a_doubled_name_inside_an_opaque_value_is_passed_on(member: str) -> None:
    tree = parse(f'{{"{member}":{{"a":1,"a":[{{"b":1,"b":2}}]}}}}')
    check(tree)
    assert render(tree) == f'{{"{member}":{{"a":1,"a":[{{"b":1,"b":2}}]}}}}'


@given(trees)
def test_an_opaque_value_is_refused_only_for_constants_surrogates_and_depth(tree: Any) -> None:
    has_surrogate = any("\ud800" <= character <= "\udfff" for character in _all_text(tree))
    assert is_refused(tree, opaque=True) == (has_constant(tree) or has_surrogate)


def _all_text(tree: Any) -> str:
    if isinstance(tree, Members):
        return "".join(name + _all_text(value) for name, value in tree)
    if isinstance(tree, list):
        return "".join(map(_all_text, tree))
    return tree if isinstance(tree, str) else ""


# Members that recur, and texts that look like members.
_MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", r"\u0061"]),
        st.sampled_from(["1", '"x"', '{"b":2}', r'"\"a\":"', "[{}]"]),
    ),
    max_size=4,
)
_ITEM_TEXTS = _MEMBERS.map(
    lambda members: "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"
)


@given(one=_ITEM_TEXTS, count=st.integers(0, 3), others=st.lists(_ITEM_TEXTS, max_size=3))
def test_a_list_needs_a_look_when_one_of_its_items_does(one: str, count: int, others: list[str]) -> None:
    items = [one] * count + others
    expected = any(json_tree.needs_a_look(item) for item in items)
    assert json_tree.items_need_a_look("[" + ",".join(items) + "]", items) is expected


def test_a_doubled_name_is_found_where_another_item_lacks_it() -> None:
    items = ['{"a":1,"b":2,"a":3}', '{"b":4}']
    assert json_tree.items_need_a_look("[" + ",".join(items) + "]", items)
