"""A failure report that is refused is a lost one; so it is made storable."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import failure
from app.domain.errors import MalformedJson
from app.domain.failure import (
    CUT_MARK,
    MAX_MESSAGE_BYTES,
    clock_error,
    cut_message,
    dropped_details,
    error_text,
    repaired_report,
)
from app.domain.job import Outcome

messy_texts = st.text(alphabet='aé€\U0001f600\x00\ud800\udfff"\\\n', max_size=50)


@given(messy_texts, st.integers(0, 20_000))
def test_a_message_is_at_most_sixteen_kibibytes_of_storable_text(messy: str, padding: int) -> None:
    kept = cut_message(messy + "€" * padding)
    encoded = kept.encode()
    assert len(encoded) <= MAX_MESSAGE_BYTES
    assert "\x00" not in kept
    assert kept.startswith(failure.storable_text(messy)[:50])


@pytest.mark.parametrize("character", ["a", "é", "€", "\U0001f600"])
def test_a_message_that_is_one_character_too_long_is_cut_with_its_mark_inside(character: str) -> None:
    size = len(character.encode())
    fits = character * (MAX_MESSAGE_BYTES // size)
    assert cut_message(fits) == fits
    kept = cut_message(fits + character)
    assert kept.endswith(CUT_MARK)
    assert MAX_MESSAGE_BYTES - 4 < len(kept.encode()) <= MAX_MESSAGE_BYTES
    assert set(kept.removesuffix(CUT_MARK)) == {character}


def test_nul_and_lone_surrogates_become_the_replacement_character() -> None:
    assert cut_message("a\x00b\ud800c\udfffd") == "a\ufffdb\ufffdc\ufffdd"


def test_an_error_is_written_with_all_three_members() -> None:
    text = error_text(type="Timeout", message="no answer", details='{"a": 1e400}')
    assert text == '{"type":"Timeout","message":"no answer","details":{"a": 1e400}}'
    assert json.loads(error_text(type=None, message="x", details=None)) == {
        "type": None,
        "message": "x",
        "details": None,
    }


def test_a_type_is_cut_at_255_characters_and_made_storable() -> None:
    error = json.loads(error_text(type="\x00" + "é" * 300, message="x", details=None))
    assert error["type"] == "\ufffd" + "é" * 254


@given(messy_texts, messy_texts)
def test_an_error_is_always_json_that_postgresql_can_store(error_type: str, message: str) -> None:
    text = error_text(type=error_type, message=message, details=None)
    text.encode()
    json.loads(text)
    assert "\\u0000" not in text


@pytest.mark.parametrize("outcome", [Outcome.LEASE_EXPIRED, Outcome.STALLED, Outcome.DEADLINE_EXCEEDED])
def test_a_clock_has_an_error_that_names_it(outcome: Outcome) -> None:
    error = json.loads(clock_error(outcome))
    assert error["type"] == outcome.value
    assert error["message"]
    assert error["details"] is None


def test_acceptable_details_are_kept_as_they_were_sent() -> None:
    report = '{"lease_version": 3, "error": {"message": "x\\ud800", "details": {"n": 0.10, "n": 1e400}}}'
    repaired = repaired_report(report)
    assert '"details":{"n":0.10,"n":1e400}' in repaired
    assert json.loads(repaired)["error"]["message"] == "x\ufffd"


@pytest.mark.parametrize(
    "details", ["NaN", "[-Infinity]", '{"a":"\\ud800"}', "[" * 101 + "]" * 101, "[" * 20_000 + "]" * 20_000]
)
def test_details_that_are_not_strict_become_a_marker_that_says_why(details: str) -> None:
    repaired = json.loads(
        repaired_report(f'{{"lease_version":1,"error":{{"message":"x","details":{details}}}}}')
    )
    assert repaired["lease_version"] == 1
    assert repaired["error"]["message"] == "x"
    assert repaired["error"]["details"]["dropped"] is True
    assert repaired["error"]["details"]["reason"]


def test_reports_are_repaired_inside_a_batch_too() -> None:
    item = '{"job_id":"j","lease_version":1,"error":{"message":"a\\u0000","details":NaN}}'
    repaired = json.loads(repaired_report(f'{{"items":[{item},{item}]}}'))
    for each in repaired["items"]:
        assert each["error"]["message"] == "a\ufffd"
        assert each["error"]["details"]["dropped"] is True


def test_only_the_error_is_repaired() -> None:
    report = '{"lease_version":1.0,"lease_version":2,"other":"\\ud800"}'
    assert repaired_report(report) == report


def test_a_report_that_is_no_json_cannot_be_repaired() -> None:
    with pytest.raises(MalformedJson):
        repaired_report('{"error":')


def test_the_marker_of_dropped_details_is_an_object() -> None:
    assert json.loads(dropped_details("over the limit")) == {"dropped": True, "reason": "over the limit"}
