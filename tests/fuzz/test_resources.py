"""Files that cost a reader far more than their length: refused within a gigabyte, and soon.

Each is read in a process of its own, whose memory is limited and which is killed when it hangs.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import zlib
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from silomix.errors import SilomixError
from silomix.messages import DistinctRows
from silomix.messages.container import HEAD, Envelope, decode, seal
from silomix.messages.folder import read_release
from silomix.posterior import load
from silomix.study import read_study

GIGABYTE = 2**30
SECONDS = 120
"""After which a reader is taken to hang: each takes a few seconds on an idle machine."""
STUDY, LARGEST_HEAD, LARGEST_FILE = 4_900_000, 7_900_000, 15_900_000


def fill(unit, size, most=10**9):
    return unit * min(size // len(unit), most)


def numbered(unit, count):
    return b"".join(unit % number for number in range(count))


def message(head):
    index = json.dumps(
        {HEAD: {"dtype": "U8", "shape": [len(head)], "data_offsets": [0, len(head)]}}
    )
    return len(index).to_bytes(8, "little") + index.encode() + head


def with_fields(fields, kind="Release"):
    head = {"format": "silomix message", "version": 9, "study": "", "silo": "", "number": 1}
    head |= {"kind": kind, "answers": "", "content": "0" * 64, "fields": fields}
    return message(json.dumps(head, separators=(",", ":")).encode())


def index_of(arrays):
    empty = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    text = json.dumps({f"a{number}": empty for number in range(arrays)}).encode()
    return len(text).to_bytes(8, "little") + text


def folded(chunk, times):
    folding = zlib.compressobj(wbits=31)
    return b"".join(folding.compress(chunk) for _ in range(times)) + folding.flush()


def folder(files, kind="DistinctRows", **more):
    """A message whose head vouches for the files; its fields are none."""
    head = {"format": "silomix message", "version": 9, "study": "", "silo": "", "number": 1}
    head |= {"kind": kind, "answers": "", "content": "0" * 64, "fields": {}, "arrays": {}} | more
    head["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return files | {HEAD: json.dumps(head).encode()}


def numbers(count):
    """A folder of a good message with so many numbers, and almost nothing of its tables."""
    rows = DistinctRows(np.zeros((count, 1), np.uint8), np.ones(count, np.int64))
    head, arrays = seal(Envelope("", "north", 1), rows)
    return folder({"arrays.txt": b64encode(save(arrays)), "rows.csv": b"0\n"}, **head)


# By name, what is read by which reader: bytes, the files of a folder, or what writes a file.
STUDIES = {
    "a study of numbers": lambda: b"silos = [" + fill(b"1,", STUDY) + b"]",
    "a study with as many as may be": lambda: b"silos = [" + fill(b"1,", STUDY, 190_000) + b"]",
    "a study of misspelt settings": lambda: numbered(b"comp%d = 1\n", 190_000),
    "a study of tables": lambda: numbered(b"[a.b.c.d%d]\n", 190_000),
    "a study of empty lines": lambda: fill(b"\n", STUDY),
}
MESSAGES = {
    "a message of lists": lambda: with_fields({"checks": [[]] * 2_000_000}),
    "a message of wrong checks": lambda: with_fields({"checks": [{}] * 190_000}),
    "a message of a policy": lambda: with_fields(
        {"policy": dict.fromkeys(map(str, range(190_000)))}
    ),
    "a message of arrays": lambda: index_of(500_000),
    "a message of brackets": lambda: message(fill(b"[", LARGEST_HEAD)),
}
RELEASES = {
    "a folder of arrays": lambda: folder({"arrays.txt": b64encode(index_of(110_000))}),
    "a folder of zeros": lambda: folder(
        {f"arrays{f'_{n}' if n > 1 else ''}.txt": fill(b"A", LARGEST_FILE) for n in range(1, 13)}
    ),
    "a folder of empty lines": lambda: folder(
        {f"cost_{n}.csv": fill(b"\n", 4990) for n in range(1900)}, kind="DivergenceReply"
    ),
    "a folder whose tables are elsewhere": lambda: numbers(1_200_000),
    "a release of variables": lambda: folder({}, "Release", variables=[{}] * 190_000),
    "a release of levels": lambda: folder(
        {}, "Release", variables=[{"name": "v", "levels": [*map(str, range(190_000))]}]
    ),
}
POSTERIORS = {
    "a posterior of zeros": lambda: folded(bytes(10_000_000), 300),
    "a posterior of arrays": lambda: zlib.compress(index_of(500_000), wbits=31),
}
READERS = {
    "study.toml": (STUDIES, read_study),
    "message": (MESSAGES, lambda path: decode(path.read_bytes())),
    "folder": (RELEASES, read_release),
    "saved.silomix": (POSTERIORS, load),
}


def make(path, content):
    if isinstance(content, dict):
        path.mkdir()
        for name, inside in content.items():
            (path / name).write_bytes(inside)
    else:
        path.write_bytes(content)


def read_within_a_gigabyte(path):
    """Read a file in this process, whose memory is limited from here on; return the refusal."""
    _, read = READERS[path.name]
    status = Path("/proc/self/status").read_text().splitlines()
    used = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (used + GIGABYTE, used + GIGABYTE))
    try:
        read(path)
    except SilomixError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("name", "attack"), [(name, one) for name, (attacks, _) in READERS.items() for one in attacks]
)
def test_a_reader_takes_no_more_than_a_gigabyte(name, attack, tmp_path):
    path, write = tmp_path / name, READERS[name][0][attack]
    make(path, write())
    folders = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, __file__, str(path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0 < len(done.stdout) < 20_000
    assert done.stdout.replace("\n", "").isprintable()


if __name__ == "__main__":
    np.linalg.inv(np.eye(3))  # what a library takes once is no cost of the reader
    sys.stdout.write(read_within_a_gigabyte(Path(sys.argv[1])))
