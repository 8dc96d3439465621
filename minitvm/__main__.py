"""``python -m minitvm``, and the console script."""

import signal


def main() -> None:
    """The command line, which Ctrl-C ends without a word from here on, however long its imports take."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from minitvm.cli import main as run

    run()


if __name__ == "__main__":
    main()
