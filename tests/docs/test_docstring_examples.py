"""Every public name has an example in its docstring, and every example runs as printed."""

from __future__ import annotations

import doctest
import inspect
from types import ModuleType

import pytest

import silomix

SHARED = {"table", "truth", "posterior", "draws"}
"""What examples may use without making it: from those of `fit` and `sample`."""


def public_objects():
    """Yield each public function, class and method of `Posterior`, by its dotted name."""
    for name in silomix.__all__:
        found = getattr(silomix, name)
        if isinstance(found, ModuleType):
            for inner in getattr(found, "__all__", own_functions(found)):
                yield f"{name}.{inner}", getattr(found, inner)
        else:
            yield name, found
    for name, method in inspect.getmembers(silomix.Posterior, inspect.isfunction):
        if not name.startswith("_"):
            yield f"Posterior.{name}", method


def own_functions(module):
    functions = inspect.getmembers(module, inspect.isfunction)
    return [n for n, f in functions if f.__module__ == module.__name__ and n[0] != "_"]


OBJECTS = dict(public_objects())


def examples_of(name, found, namespace):
    doc = inspect.getdoc(found) or ""
    return doctest.DocTestParser().get_doctest(doc, namespace, name, None, None)


def run(test):
    """Run the examples of a docstring, and return what went wrong, in words."""
    said = []
    runner = doctest.DocTestRunner(verbose=False)
    failed = runner.run(test, out=said.append, clear_globs=False).failed
    return "".join(said) if failed else ""


@pytest.fixture(scope="module")
def shared():
    """The names that the examples of `fit` and `sample` leave behind."""
    left = {"silomix": silomix}
    for name in ("sample", "fit"):
        test = examples_of(name, OBJECTS[name], {})
        assert run(test) == ""
        left |= {key: value for key, value in test.globs.items() if key in SHARED}
    return left


@pytest.mark.parametrize("name", sorted(OBJECTS.keys() - {"sample", "fit"}))
def test_examples_run(name, shared, tmp_path, monkeypatch):
    """Those of `sample` and `fit` run first, in the fixture."""
    monkeypatch.chdir(tmp_path)
    test = examples_of(name, OBJECTS[name], dict(shared))
    assert test.examples, f"{name} has no example"
    assert run(test) == ""


def test_every_module_of_names_is_looked_into():
    assert {"metrics.coverage", "plots.trace", "rivals.cmc", "Posterior.report"} <= set(OBJECTS)


def test_a_wrong_example_fails():
    def wrong():
        """
        >>> 1 + 1
        3
        """

    assert "Got:\n    2" in run(examples_of("wrong", wrong, {}))
