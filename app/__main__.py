"""Run the command line: `fencepost`, and `python -m app`."""

import sys


def main() -> None:
    """Run the command that argv names; `work` without the service, which takes four times as long to load."""
    if sys.argv[1:2] == ["work"]:
        from app.work.command import work  # noqa: PLC0415

        work(sys.argv[2:], prog_name="fencepost work")
    else:
        from app.cli import main as every_command  # noqa: PLC0415

        every_command()


if __name__ == "__main__":
    main()
