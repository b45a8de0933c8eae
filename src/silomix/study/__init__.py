"""Settings of a study, its file and digest; the policy of a silo."""

from __future__ import annotations

from silomix.study.keywords import make_study as make_study
from silomix.study.settings import Aggregation as Aggregation
from silomix.study.settings import Ball as Ball
from silomix.study.settings import Divergence as Divergence
from silomix.study.settings import Evidence as Evidence
from silomix.study.settings import FewRounds as FewRounds
from silomix.study.settings import Hungarian as Hungarian
from silomix.study.settings import Lbfgs as Lbfgs
from silomix.study.settings import Polish as Polish
from silomix.study.settings import Psgd as Psgd
from silomix.study.settings import Study as Study
from silomix.study.study_file import digest as digest
from silomix.study.study_file import read_study as read_study
from silomix.study.study_file import write_study as write_study
