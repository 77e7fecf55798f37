"""The namespace with a cable, where one can be made."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.chaos.__main__ import must_not_skip
from tests.chaos.network import Cable, NetworkUnavailable, cabled_namespace


@pytest.fixture(name="cable")
def _cable() -> Iterator[Cable]:
    try:
        with cabled_namespace() as cable:
            yield cable
    except NetworkUnavailable as error:
        if must_not_skip():
            raise
        pytest.skip(str(error))


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout  # noqa: S607


def test_the_far_end_loses_its_signal_while_the_cable_is_pulled(cable: Cable) -> None:
    assert cable.has_signal()
    cable.pull()
    assert not cable.has_signal()
    cable.plug_in()
    assert cable.has_signal()


def test_a_second_namespace_of_one_process_is_refused_and_leaves_the_first_whole(cable: Cable) -> None:
    with pytest.raises(NetworkUnavailable), cabled_namespace():
        pytest.fail("two namespaces of one name")
    assert cable.namespace in _ip("netns", "list")
    assert cable.has_signal()


def test_nothing_is_left_of_a_namespace(cable: Cable) -> None:
    cable.remove()
    assert cable.namespace not in _ip("netns", "list")
    assert cable.device not in _ip("-brief", "link")
