"""What a silo lets out: its own policy, as a file that no coordinator can override."""

from __future__ import annotations

from silomix.policy.file import find_policy, read_policy, write_policy
from silomix.policy.limits import Limits, check_study
from silomix.policy.record import (
    GIVES_AWAY,
    OPEN,
    PRESETS,
    UNLIMITED,
    Exchanges,
    Policy,
    echo,
    policy_digest,
    policy_named,
)

__all__ = [
    "GIVES_AWAY",
    "OPEN",
    "PRESETS",
    "UNLIMITED",
    "Exchanges",
    "Limits",
    "Policy",
    "check_study",
    "echo",
    "find_policy",
    "policy_digest",
    "policy_named",
    "read_policy",
    "write_policy",
]
