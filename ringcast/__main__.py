"""`python -m ringcast` and the `ringcast` command."""


def main() -> None:
    """Run the command line."""


if __name__ == "__main__":
    main()
