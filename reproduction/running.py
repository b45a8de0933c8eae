"""What every script here shares: results that grow line by line, and runs that can be stopped.

A results file has a line for each case, written as soon as the case is done. A script runs the
cases that have no line yet, so it may be stopped at any time and started again. One script at a
time may write a file.
"""

from __future__ import annotations

import argparse
import csv
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

RESULTS = Path(__file__).parent / "results"
DESIGNS = ("homogeneous", "nested", "non-nested")
SEPARABILITIES = ("easy", "poor")
CELLS = [(design, separability) for design in DESIGNS for separability in SEPARABILITIES]
CELL_KEYS = ["design", "separability"]


def arguments(description, *, datasets, **others):
    """Return a parser with the options that all scripts have.

    Parameters
    ----------
    datasets : how many by default.
    others : further options by name, each with its default: an int, a string, or a tuple of
        numbers, which are given as "1,2,4".
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=datasets)
    parser.add_argument(
        "--jobs",
        type=int,
        default=2,
        help="processes side by side; with 1, times count every thread of the algebra",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    for name, default in others.items():
        kind = numbers_like(default) if isinstance(default, tuple) else type(default)
        parser.add_argument(f"--{name}", type=kind, default=default)
    return parser


def numbers_like(default):
    """Return a function that reads "1,2,4" as numbers of the type of the default's."""

    def numbers(words):
        return tuple(map(type(default[0]), words.split(",")))

    return numbers


def chosen_cells(words):
    """Return the cells named in "nested poor,non-nested easy"; all of them in an empty string."""
    named = [tuple(cell.split()) for cell in words.split(",") if cell] or CELLS
    for cell in named:
        if cell not in CELLS:
            known = ", ".join(map(" ".join, CELLS))
            raise SystemExit(f"{' '.join(cell)!r} is no cell; choose from {known}")
    return named


def chosen_words(words, known):
    """Return the words of "default,paper", each of them known; all of them in an empty string."""
    named = [word for word in words.split(",") if word] or list(known)
    for word in named:
        if word not in known:
            raise SystemExit(f"{word!r} is not known; choose from {list(known)}")
    return named


def in_cell_order(page):
    """Return a table's lines in the order of the cells, and those of a cell as they were."""
    places = {" ".join(cell): place for place, cell in enumerate(CELLS)}
    return page.sort_values("cell", key=lambda cells: cells.map(places), kind="stable")


def read_lines(path, columns):
    """Return the lines of a results file; none if there is no file, or nothing in it yet."""
    begun = path.exists() and path.stat().st_size > 0
    if not begun:
        return pd.DataFrame(columns=columns)
    return pd.read_csv(path, keep_default_na=False, na_values=[""])  # "null" is a word here


def keep_apart(chosen, **usual):
    """Refuse to add lines of other sizes to the project's own results, which have one size."""
    for name, size in usual.items():
        given = getattr(chosen, name)
        if given != size and chosen.results.resolve() == RESULTS:
            raise SystemExit(
                f"--{name} {given}: the lines in {RESULTS} are of {size}; "
                "give another folder with --results"
            )


def done_cases(path, columns, keys, lines=1):
    """Return the values of the key columns of every case that is done.

    Parameters
    ----------
    keys : the columns that say which case a line is.
    lines : how many lines a case has. They are written together, so only the last case can lack
        some, if the run was stopped just then: what it has is dropped.
    """
    mend(path)
    found = read_lines(path, columns)[keys]
    if len(found):
        last = (found == found.iloc[-1]).all(axis=1).sum()
        if last < lines:
            drop_lines(path, last)
            found = found[:-last]
    return set(found.itertuples(index=False, name=None))


def mend(path):
    """Drop a last line that was cut short when its run was stopped."""
    if path.exists():
        text = path.read_bytes()
        if not text.endswith(b"\n"):
            path.write_bytes(text[: text.rfind(b"\n") + 1])


def drop_lines(path, last):
    """Drop so many lines from the end of a file."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-last]))


def cases_against(values, methods, seeds):
    """Return cases of (separability, seed, value, method): methods against what varies.

    Data set by data set, so that a run that is stopped early is balanced.
    """
    return [
        (separability, seed, value, method)
        for seed in seeds
        for separability in SEPARABILITIES
        for value in values
        for method in methods
    ]


def run_missing(path, columns, keys, run, cases, chosen):
    """Run the cases that have no line yet, with the chosen iterations, rows and jobs.

    Parameters
    ----------
    keys : the columns that say which case a line is, in the order of a case.
    chosen : the options given.
    """
    done = done_cases(path, columns, keys)
    missing = [(*case, chosen.iterations, chosen.rows) for case in cases if case not in done]
    run_cases(path, columns, run, missing, chosen.jobs)


def run_cases(path, columns, run, cases, jobs, prepare=None):
    """Run `run(*case)` for every case, `jobs` at a time, and append the lines it returns.

    With one job everything runs in this process. `prepare` is called once in each process. A case
    that fails is named, and the others go on; it has no line, so the next run tries it again.
    """
    if not cases:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists() or path.stat().st_size == 0
    failed = 0
    with path.open("a", newline="", encoding="utf-8") as file, pool_of(jobs, prepare) as finished:
        writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
        if fresh:
            writer.writeheader()
            file.flush()
        for number, (case, result) in enumerate(finished(run, cases), 1):
            try:
                writer.writerows(result())
            except Exception as error:
                failed += 1
                print(f"{case} failed: {type(error).__name__}: {error}", flush=True)
            file.flush()
            if number % 20 == 0 or number == len(cases):
                print(f"{number} of {len(cases)} runs done", flush=True)
    if failed:
        raise SystemExit(f"{failed} of {len(cases)} runs failed; start again to try them again")


@contextmanager
def pool_of(jobs, prepare):
    """Yield a function that gives each case, as it finishes, and a function for its result."""
    if jobs == 1:
        if prepare:
            prepare()
        yield lambda run, cases: ((case, partial(run, *case)) for case in cases)
        return
    # a CPU second must mean one core: the processes are the parallelism, not the algebra in them
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), prepare)

    def finished(run, cases):
        futures = {pool.submit(run, *case): case for case in cases}
        return ((futures[future], future.result) for future in as_completed(futures))

    try:
        yield finished
    finally:
        pool.shutdown(cancel_futures=True)
