"""The console script, also as `python -m oversmooth`: under torchrun, and where no script is installed."""

import signal
import sys

from oversmooth.safety.signals import catch_signals


def main() -> None:
    """The command line, which is imported within: that takes long enough to be stopped."""
    try:
        with catch_signals() as stop:
            try:
                from oversmooth.cli import main as command_line

                command_line()
            except BaseException as error:
                if stop.number is None or isinstance(error, SystemExit):  # it has been said
                    raise
                sys.stderr.write(f"oversmooth: {stop.message}\n")
                sys.exit(stop.exit_code)
    finally:
        # Nothing is left to tidy: a Ctrl-C may end what the interpreter still does, without a word.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
