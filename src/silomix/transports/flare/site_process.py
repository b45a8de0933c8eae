"""FLARE's client, with the few requests of a server that a run needs, in place of all.

FLARE lets the server say whether the site's rules apply to a request, and one of its requests
reads any file. So those that no run needs are not there at all.
"""

from __future__ import annotations

import runpy
import uuid
from typing import TYPE_CHECKING

from nvflare.private.defs import RequestHeader
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.scheduler_cmds import (
    CancelResourceProcessor,
    CheckResourceProcessor,
    StartJobProcessor,
)
from nvflare.private.fed.client.training_cmds import (
    AbortAppProcessor,
    ClientStatusProcessor,
    DeployProcessor,
    NotifyJobStatusProcessor,
    ShutdownClientProcessor,
)

if TYPE_CHECKING:
    from nvflare.private.admin_defs import Message


class DeployRun(DeployProcessor):
    """Deploys a job into a folder of its own, never over ``startup`` or ``local``."""

    def process(self, req: Message, app_ctx: object) -> Message:
        """Refuse a job whose name, that of its folder, is not the number FLARE gives one."""
        job = req.get_header(RequestHeader.JOB_ID)
        if str(uuid.UUID(job)) != job:
            raise ValueError(f"{job!r} is not the number of a job")
        return super().process(req, app_ctx)


REQUESTS = [
    AbortAppProcessor(),
    CancelResourceProcessor(),
    CheckResourceProcessor(),
    ClientStatusProcessor(),
    DeployRun(),
    NotifyJobStatusProcessor(),
    ShutdownClientProcessor(),
    StartJobProcessor(),
]

if __name__ == "__main__":
    ClientRequestProcessors.request_processors = REQUESTS
    runpy.run_module(
        "nvflare.private.fed.app.client.client_train", run_name="__main__", alter_sys=True
    )
