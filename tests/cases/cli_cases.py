"""Commands run in this process, and what they leave behind."""

from __future__ import annotations

import stat

from typer.testing import CliRunner

from silomix import cli


def run(*args):
    """Run a command, and return what it printed and its exit code."""
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


def words(result):
    """What a command printed, without its line breaks."""
    return " ".join(result.output.split())


def mode(path):
    """Who may do what with a file."""
    return stat.S_IMODE(path.stat().st_mode)
