"""Run the command line with `python -m app`."""

from app.cli import main

if __name__ == "__main__":
    main()
