"""What `import silomix` offers, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import silomix
from silomix.errors import MissingDependency


def test_every_public_name_is_there():
    for name in silomix.__all__:
        assert getattr(silomix, name) is not None, name


LATE = (
    "import silomix.simulate\n"
    "assert set(dir(silomix)) >= set(silomix.__all__)\n"
    "assert silomix.load.__module__ == 'silomix.posterior.saved_file'\n"
    "assert silomix.simulate.__name__ == 'simulate'\n"  # the function, not the module
)
HELP = (
    "from typer.testing import CliRunner\n"
    "from silomix.cli import app\n"
    "assert 'ledger' in CliRunner().invoke(app, ['--help']).stdout"
)


@pytest.mark.parametrize(
    ("start", "then"), [("import silomix", LATE), (HELP, "")], ids=["import", "help"]
)
def test_what_is_slow_is_imported_late_and_looks_as_if_it_were_there(start, then):
    code = (
        f"{start}\n"
        "import sys\n"
        "slow = {'numba', 'pandas', 'pydantic', 'sklearn', 'silomix.api'} & set(sys.modules)\n"
        f"assert not slow, slow\n{then}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_estimator_names_its_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "silomix.estimator", raising=False)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(MissingDependency, match=r"pip install 'silomix\[sklearn\]'"):
        _ = silomix.FederatedMixture


def test_unknown_names_are_unknown():
    with pytest.raises(AttributeError, match="module 'silomix' has no attribute 'fitt'"):
        _ = silomix.fitt
