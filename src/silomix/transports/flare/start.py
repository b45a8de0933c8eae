"""A process of FLARE whose files are its owner's alone.

FLARE makes its logs and job folders as the umask says, and what goes wrong with a row may stand in
them. The umask is set here, once, and the processes that FLARE starts inherit it.
"""

from __future__ import annotations

import os
import runpy
import sys

NOBODY_ELSE = 0o077


def main(module: str, *arguments: str) -> None:
    """Run a module of FLARE as this program."""
    os.umask(NOBODY_ELSE)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
