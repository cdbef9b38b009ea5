"""`python -m ringcast` and the `ringcast` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exits with its status."""
    from ringcast.frontend.cli.streams import finish_output, prepare_streams

    prepare_streams()
    try:
        _run()
    except KeyboardInterrupt:  # before a command has begun; commands take care of it themselves
        sys.exit(130)
    except SystemExit as end:
        sys.exit(finish_output(end.code or 0) if isinstance(end.code, int | None) else end.code)


def _run() -> None:
    from ringcast.frontend.cli.requirements import missing, missing_line

    names = missing(("typer", "rich"))
    if names and sys.argv[1:2] == ["top"]:  # it belongs to the actor runtime, which is installed alone here
        from ringcast.actors.top import main as top

        top("ringcast top", sys.argv[2:])
    if names:
        print(f"ringcast: {missing_line(names)}", file=sys.stderr)
        sys.exit(1)
    from ringcast.frontend.cli.main import app

    app()


if __name__ == "__main__":
    main()
