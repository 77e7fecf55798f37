"""Questions to processes that may end at any moment."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

import psutil

T = TypeVar("T")


def answers_of(
    processes: Iterable[psutil.Process], question: Callable[[psutil.Process], T]
) -> dict[psutil.Process, T]:
    """Return what each answers. Left out is one that has ended since it was listed."""
    answers: dict[psutil.Process, T] = {}
    for process in processes:
        # A zombie raises one of its subclasses where it has nothing to say.
        with suppress(psutil.NoSuchProcess):
            answers[process] = question(process)
    return answers
