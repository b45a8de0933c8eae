"""The R package with a real R: its own tests, its vignette, and the same numbers as Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from numpy.testing import assert_allclose

import silomix

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rscript(tmp_path_factory):
    """Run R code, with the package installed in a library of its own."""
    if shutil.which("Rscript") is None:
        pytest.skip("needs R: apt-get install r-base")
    needed = ("reticulate", "testthat", "knitr", "rmarkdown", "posterior")
    for name in needed:
        if subprocess.run(["Rscript", "-e", f"library({name})"], capture_output=True).returncode:
            pytest.skip(f"needs the R package {name}: apt-get install r-cran-{name}")
    library = tmp_path_factory.mktemp("library")
    paths = {"R_LIBS": str(library), "RETICULATE_PYTHON": sys.executable}
    environment = os.environ | paths | {"PYTHONPATH": str(ROOT / "src")}

    def run(code, folder, program=("Rscript", "-e")):
        found = subprocess.run(
            [*program, code], cwd=folder, env=environment, text=True, capture_output=True
        )
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    source = shutil.copytree(ROOT / "r", library / "source")
    run(str(source), library, ("R", "CMD", "INSTALL", "--no-test-load", f"--library={library}"))
    return run


def test_its_own_tests(rscript):
    rscript(
        'testthat::test_dir("testthat", package = "silomix", load_package = "installed", '
        'stop_on_failure = TRUE, reporter = "check")',
        ROOT / "r" / "tests",
    )


def test_the_vignette_runs(rscript, tmp_path):
    shutil.copy(ROOT / "r" / "vignettes" / "silomix.Rmd", tmp_path)
    rscript('knitr::opts_chunk$set(error = FALSE); knitr::knit("silomix.Rmd")', tmp_path)
    page = (tmp_path / "silomix.md").read_text(encoding="utf-8")
    assert "A = 1" in page and "weights[0]" in page and "clusters in 3 silos" in page
    assert "P001" in page and "1: frail" in page and "p_value" in page and "E2" in page


def test_the_same_numbers_as_in_python(rscript, tmp_path):
    """Categories, missing ones too, and numbers arrive as they were."""
    table, _ = silomix.simulate("homogeneous", variables="mixed", rows=300, silos=2, seed=1)
    table.to_csv(tmp_path / "table.csv", index=False)
    rscript(
        'table <- read.csv("table.csv", na.strings = "", stringsAsFactors = TRUE)\n'
        "categories <- paste0('x', 1:5)\n"
        "table[categories] <- lapply(table[categories], factor)\n"
        'fit <- silomix::silomix_fit(table, silo = "silo", kinds = c(x10 = "poisson"), '
        "iterations = 1500, seed = 1)\n"
        'write.csv(fit$profiles, "profiles.csv", row.names = FALSE)\n'
        'write.csv(predict(fit, table, type = "prob"), "rows.csv", row.names = FALSE)\n',
        tmp_path,
    )
    again = silomix.fit(
        tmp_path / "table.csv", silo="silo", kinds={"x10": "poisson"}, iterations=1500, seed=1
    )
    expected, found = again.profiles(), pd.read_csv(tmp_path / "profiles.csv")
    assert found["variable"].tolist() == expected["variable"].tolist()
    numbers = ["mean", "lower", "upper"]
    # R writes 15 digits
    assert_allclose(found[numbers], expected[numbers], rtol=1e-14)
    membership = again.membership(tmp_path / "table.csv", silo="silo")
    assert_allclose(pd.read_csv(tmp_path / "rows.csv"), membership, atol=1e-9)
