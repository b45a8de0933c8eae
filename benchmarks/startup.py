"""What `import silomix` and `silomix --help` cost, as multiples of `import numpy`. `make bench`.

Each start is a fresh process, so Python's own start is in every time. The starts are interleaved,
and after one round to warm the disk the medians of the repeats are compared. CPU time, since that
of the clock depends on what else the machine does.
"""

from __future__ import annotations

import json
import platform
import resource
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "startup.json"
REPEATS = 15
UNIT = "import numpy"
STARTS = {
    UNIT: ["-c", "import numpy"],
    "import silomix": ["-c", "import silomix"],
    "silomix --help": ["-m", "silomix", "--help"],
    "silomix fit --help": ["-m", "silomix", "fit", "--help"],
}
BARS = {"import silomix": 2.0, "silomix --help": 4.0}


def cpu_seconds(arguments: list[str]) -> float:
    """CPU seconds of a fresh Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def main() -> None:
    rounds = [
        {name: cpu_seconds(arguments) for name, arguments in STARTS.items()}
        for _ in range(1 + REPEATS)
    ]
    times = {name: statistics.median(taken[name] for taken in rounds[1:]) for name in STARTS}
    ratios = {name: round(taken / times[UNIT], 2) for name, taken in times.items()}
    for name, taken in times.items():
        bar = f", bar {BARS[name]}" if name in BARS else ""
        print(f"{name:>20}: {1000 * taken:5.0f} ms, {ratios[name]:5.2f} times {UNIT}{bar}")
    record = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "repeats": REPEATS,
        "cpu_milliseconds": {name: round(1000 * taken) for name, taken in times.items()},
        "times_import_numpy": ratios,
        "bars": BARS,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {RESULTS}")
    missed = [name for name, bar in BARS.items() if ratios[name] > bar]
    if missed:
        raise SystemExit(f"a bar was missed: {missed}")


if __name__ == "__main__":
    main()
