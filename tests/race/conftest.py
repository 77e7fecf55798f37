"""What races need."""

import pytest

from tests.support.rivals import Pauses


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    """Tells when a verb has met a lease that is locked."""
    return Pauses(monkeypatch)
