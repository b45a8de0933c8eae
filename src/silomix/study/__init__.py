"""Settings of a study, its file and digest; the policy of a silo."""

from __future__ import annotations

import silomix.paper  # noqa: F401  # which registers its methods
from silomix.study.keywords import make_study as make_study
from silomix.study.settings import AGGREGATIONS as AGGREGATIONS
from silomix.study.settings import MATCHINGS as MATCHINGS
from silomix.study.settings import SOLVERS as SOLVERS
from silomix.study.settings import Aggregation as Aggregation
from silomix.study.settings import DensityProduct as DensityProduct
from silomix.study.settings import Evidence as Evidence
from silomix.study.settings import Lbfgs as Lbfgs
from silomix.study.settings import Matching as Matching
from silomix.study.settings import Polish as Polish
from silomix.study.settings import Solver as Solver
from silomix.study.settings import Study as Study
from silomix.study.settings import Vcmc as Vcmc
from silomix.study.study_file import digest as digest
from silomix.study.study_file import read_study as read_study
from silomix.study.study_file import write_study as write_study
