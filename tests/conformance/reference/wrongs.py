"""What the reference client can be told to do wrong."""


class Wrongs:
    """The mistakes that this run makes. Each is asked for by name, where the right thing would be done."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def __call__(self, name: str) -> bool:
        return name in self._names
