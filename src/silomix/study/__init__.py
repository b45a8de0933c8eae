"""Settings of a study, its file and digest; the policy of a silo."""

from __future__ import annotations

import silomix.paper  # noqa: F401  # which registers its methods
from silomix.study.keywords import make_study as make_study
from silomix.study.methods import AGGREGATIONS as AGGREGATIONS
from silomix.study.methods import MATCHINGS as MATCHINGS
from silomix.study.methods import SOLVERS as SOLVERS
from silomix.study.methods import Aggregation as Aggregation
from silomix.study.methods import DensityProduct as DensityProduct
from silomix.study.methods import Evidence as Evidence
from silomix.study.methods import Lbfgs as Lbfgs
from silomix.study.methods import Matching as Matching
from silomix.study.methods import Polish as Polish
from silomix.study.methods import Solver as Solver
from silomix.study.methods import Vcmc as Vcmc
from silomix.study.settings import Study as Study
from silomix.study.study_file import read_study as read_study
from silomix.study.study_file import write_study as write_study
from silomix.study.validation import digest as digest
