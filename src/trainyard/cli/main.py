"""Run the command `trainyard`.

`main` imports all other modules itself, so that Ctrl-C during their import prints one line, too.
"""

import signal
import sys
from collections.abc import Sequence

__all__ = ["main", "run"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Parameters
    ----------
    arguments : by default those that the process was started with.

    Returns
    -------
    int
        The exit code: 0; 1 where there is a result and it is not what was asked for, such as a plan that does not
        fit, or a run began and failed; 2 for an error of the user; both are told in one line of stderr; 130 after Ctrl-C;
        143 after SIGTERM.
        With ``TRAINYARD_DEBUG=1`` errors keep their traceback.
    """
    try:
        from trainyard.cli.signals import raising_signals

        with raising_signals():
            from trainyard.cli.dispatch import dispatch

            return dispatch(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt as stop:
        from trainyard.cli.signals import Terminated

        is_terminated = isinstance(stop, Terminated)
        print("terminated" if is_terminated else "interrupted", file=sys.stderr)
        return 128 + (signal.SIGTERM if is_terminated else signal.SIGINT)


def run() -> None:
    """Run the command line of this process, and exit."""
    code = main()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left to tell: no traceback
    import gc

    # At its end Python looks for garbage in all that there is, which takes seconds after a large plan.
    gc.freeze()
    sys.exit(code)
