"""`python -m silomix` is the command `silomix`."""

from silomix.cli import main

main()
