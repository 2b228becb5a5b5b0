"""Where the command line begins, as the script `replayd` and as `python -m replayd`.

Owns how much of Python's collector of cycles a start and an end pay for: a fifth of what a short command took. What
importing makes stays, so nothing is looked for in it, neither while it is made nor at the end.
"""

from __future__ import annotations

import gc


def run() -> None:
    """Run the command that was typed, and end."""
    gc.disable()
    from replayd.cli import main

    gc.freeze()
    gc.enable()
    try:
        # Also where a wrapper runs the module: nobody typed that.
        main(prog_name="replayd")
    finally:
        # All that is left goes with the process; what must be closed has been.
        gc.freeze()


if __name__ == "__main__":
    run()
