"""The policy is part of the study package: `silomix.study.policy`."""

from silomix.study.policy import *  # noqa: F403
