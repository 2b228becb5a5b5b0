"""`python -m replayd`: the same command line as the script `replayd`."""

from __future__ import annotations

from replayd.cli import main

if __name__ == "__main__":
    main()
