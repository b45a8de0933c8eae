"""One sampling of the silos for all methods that would sample them alike.

Silos under the same settings draw the same draws, whatever the coordinator does with them later.
Inside `shared_sampling()` a silo that was sampled before is not sampled again; how long it took is
remembered and counted for every method that uses it, as if each had run alone.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from unittest.mock import patch

import silomix.silo.local
from silomix.silo.store import digest_arrays


class Sampled:
    """Local posteriors that were sampled, by what decides them.

    Attributes
    ----------
    saved : CPU seconds that were not spent again since `start`.
    used : local posteriors that were asked for since `start`, by the place of their silo.
    """

    def __init__(self):
        self._known = {}
        self._sample = silomix.silo.local.sample_locally
        self.start()

    def start(self):
        """Begin to count for another method."""
        self.saved, self.used = 0.0, {}

    def __call__(self, silo):
        study = silo.study
        key = (
            digest_arrays(silo.shard.cells),
            *(part.model_dump_json() for part in (study.model, study.schedule, study.local)),
            study.seed, len(study.silos), silo.place,
        )  # fmt: skip
        if key in self._known:
            self.saved += self._known[key][1]
        else:
            began = time.process_time()
            local = self._sample(silo)
            self._known[key] = local, time.process_time() - began
        self.used[silo.place] = self._known[key][0]
        return self.used[silo.place]


@contextmanager
def shared_sampling():
    """Let the silos of this process share their sampling; yield what counts it."""
    sampled = Sampled()
    with patch.object(silomix.silo.local, "sample_locally", sampled):
        yield sampled
