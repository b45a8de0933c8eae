"""Messages made wrong in many ways, the same ways for the same seed.

A mutation is either raw, which a checksum catches, or sealed: checksums are made again, as somebody
with bad intentions would, so that the layers behind them are reached.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import signal
import struct
from contextlib import contextmanager

import numpy as np

from silomix.messages.binary import CHECKSUM, MAGIC, PREFIX
from silomix.messages.documents import canonical
from silomix.messages.envelope import VERSION
from silomix.messages.files import MESSAGE, RELEASE

JUNK = [
    None, True, False, 0, 1, -1, 2, 255, 10**6, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30,
    0.0, -0.0, 0.5, -1.5, 1e-320, 1e308, float("nan"), float("inf"), float("-inf"),
    "", " ", "nan", "inf", "<f8", "|O", "|V8", "<f16", "<U10", "é\u202e", "\ud800", "\x1b[2J",
    "x" * 20_000,
    [], {}, [[]], [0], [1, 1], [0, 10**9], [10**9, 0], [10**5] * 4, [-1], [1.0], [None], ["a"],
    {"dtype": "<f8", "shape": [3]}, {"dtype": "<f8", "shape": [10**12]}, {"a": 1},
    "../../etc/passwd", "/dev/zero", "message.json", "Release", "SampleLocally",
]  # fmt: skip
CELLS = [
    "", "-1", "0", "1", "2", "nan", "inf", "-inf", "1e999", "1e-999", "1_0", " 1", "0x10", "9" * 25,
    "9" * 5000, "=1+1", '"1"', "1,1", "1\n1", "1.5", "-0.0", "1e308", "\u0661", "None", "\x00",
]  # fmt: skip
NUMBERS = [np.nan, np.inf, -np.inf, -1.0, 0.0, 2.0, 1e300, -0.0, 1e-320]
WHOLE = [-1, 0, 1, 2, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63)]


class TooLong(Exception):
    """A case took longer than it may."""


@contextmanager
def time_limit(seconds):
    """Raise `TooLong` when what is inside takes longer: a hang fails instead of hanging."""

    def stop(*_):
        raise TooLong(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pick(rng, options):
    return options[int(rng.integers(len(options)))]


def mutate_message(data, others, rng):
    """Return the bytes of a message made wrong; `others` are messages to take parts from."""
    return pick(rng, [*RAW, *SEALED, *SEALED, *SEALED])(data, others, rng)


def flip_bits(data, _, rng):
    content = bytearray(data)
    for place in rng.integers(len(content), size=rng.integers(1, 9)):
        content[place] ^= 1 << int(rng.integers(8))
    return bytes(content)


def truncate(data, _, rng):
    return data[: rng.integers(len(data))]


def extend(data, _, rng):
    return data + rng.bytes(int(rng.integers(1, 100)))


def splice(data, others, rng):
    other = pick(rng, others)
    return data[: rng.integers(len(data))] + other[rng.integers(len(other)) :]


def lie_in_prefix(data, _, rng):
    """Claim another version or other lengths, up to those of a bomb."""
    head, version, head_length, length = PREFIX.unpack(data[: PREFIX.size])
    huge = pick(rng, [0, 1, 2**16, 2**31, 2**32 - 1])
    fields = pick(
        rng,
        [
            (head, version, huge, length),
            (head, version, head_length, huge * 2**20),
            (head, int(rng.integers(2**16)), head_length, length),
            (rng.bytes(8), version, head_length, length),
        ],
    )
    return reseal(PREFIX.pack(*fields) + data[PREFIX.size : -CHECKSUM])


RAW = [flip_bits, truncate, extend, splice, lie_in_prefix]


def split_message(data):
    """Return the head, as text, and the arrays of a message in bytes."""
    *_, head_length, _ = PREFIX.unpack(data[: PREFIX.size])
    middle = PREFIX.size + head_length
    return data[PREFIX.size : middle].decode(), data[middle:-CHECKSUM]


def join_message(head, body, version=VERSION):
    """Return a message with this head and body whose lengths and checksum fit."""
    head = head.encode("utf-8", "surrogatepass")
    length = PREFIX.size + len(head) + len(body) + CHECKSUM
    return reseal(PREFIX.pack(MAGIC, version, len(head), length) + head + body)


def reseal(content):
    return content + hashlib.sha256(content).digest()


def edit_head(data, _, rng):
    head, body = split_message(data)
    document = json.loads(head)
    edit_tree(document, rng)
    return join_message(json.dumps(document), body)


def edit_text(data, _, rng):
    head, body = split_message(data)
    return join_message(edit_json_text(head, rng), body)


def edit_json_text(text, rng):
    """Break JSON as text: keys twice, depth, numbers of many digits, or any other character."""
    place = int(rng.integers(len(text)))
    deep = pick(rng, [10, 100, 100_000])
    return pick(
        rng,
        [
            text.replace('"number"', '"number": 1, "number"', 1),
            text.replace('"shape"', '"shape": [1], "shape"', 1),
            text[:-1] + ', "more": ' + "[" * deep + "]" * deep + "}",
            text[:-1] + ', "more": ' + '{"a":' * deep + "1" + "}" * deep + "}",
            "[" * deep,
            text.replace(": 7", ": " + "7" * deep, 1),
            text.replace(": 7", ": 7e99999", 1),
            text[:place] + pick(rng, list('{}[]",:\\\x00é')) + text[place:],
            text[:place] + text[place + 1 :],
            "\ufeff" + text,
            "null",
            "",
        ],
    )


def edit_tree(document, rng):
    """Change up to three places of plain values: another value, one more, one less, swapped."""
    for _ in range(int(rng.integers(1, 4))):
        inside, key = pick(rng, list(_places(document)))
        action = int(rng.integers(6))
        if action == 0 and isinstance(inside, dict):
            del inside[key]
        elif action == 1 and isinstance(inside, dict):
            inside[pick(rng, ["more", "", "matched", "fields", "kind"])] = inside[key]
        elif action == 2 and isinstance(inside[key], list) and inside[key]:
            inside[key] = inside[key] * int(rng.integers(0, 3))
        elif action == 3 and isinstance(inside[key], int | float):
            inside[key] = inside[key] + pick(rng, [-1, 1, 0.5, 1000])
        elif action == 4:
            other, name = pick(rng, list(_places(document)))
            inside[key] = copy.deepcopy(other[name])
        else:
            inside[key] = copy.deepcopy(pick(rng, JUNK))
        if not any(True for _ in _places(document)):
            return


def _places(document):
    """Every place in plain values, as (what it is in, its key)."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(items):
        yield document, key
        if isinstance(value, dict | list):
            yield from _places(value)


def edit_body(data, _, rng):
    """Change numbers: those that no reader likes, any bits, or their order."""
    head, body = split_message(data)
    if len(body) < 8:
        return edit_head(data, _, rng)
    content = bytearray(body)
    place = int(rng.integers(len(body) // 8)) * 8
    number = pick(rng, [struct.pack("<d", pick(rng, NUMBERS)), struct.pack("<q", pick(rng, WHOLE))])
    action = int(rng.integers(4))
    if action == 0:
        content[place : place + 8] = number
    elif action == 1:
        content = bytearray(flip_bits(body, _, rng))
    elif action == 2:
        content = bytearray(body[place:] + body[:place])
    else:
        content = content[:place] + number + content[place:]
    return join_message(head, bytes(content))


def swap_parts(data, others, rng):
    return join_message(split_message(data)[0], split_message(pick(rng, others))[1])


def swap_shapes(data, _, rng):
    """Exchange the shapes of two arrays, or turn one around."""
    head, body = split_message(data)
    document = json.loads(head)
    shapes = [inside for inside, key in _places(document) if key == "shape"]
    if not shapes:
        return edit_head(data, _, rng)
    one, other = pick(rng, shapes), pick(rng, shapes)
    one["shape"], other["shape"] = other["shape"][::-1], one["shape"]
    return join_message(json.dumps(document), body)


SEALED = [edit_head, edit_head, edit_text, edit_body, edit_body, swap_parts, swap_shapes]


def mutate_folder(folder, others, rng):
    """Make a message folder wrong, in place; `others` are folders to take files from."""
    pick(rng, [*RAW_FOLDER, *SEALED_FOLDER, *SEALED_FOLDER])(folder, others, rng)


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def change_file(folder, others, rng):
    path = pick(rng, files_in(folder))
    donors = [file.read_bytes() for other in others for file in files_in(other)]
    change = pick(rng, [flip_bits, truncate, extend, splice])
    content = path.read_bytes()
    path.write_bytes(change(content, [d for d in donors if d], rng) if content else b"x")


def remove_file(folder, _, rng):
    pick(rng, files_in(folder)).unlink()


def add_file(folder, others, rng):
    name = pick(
        rng, ["notes.txt", "weights.csv", "weights_part2.csv", ".hidden", "é\n.csv", "x" * 200]
    )
    (folder / name).write_bytes(pick(rng, files_in(pick(rng, others))).read_bytes())


def add_odd(folder, _, rng):
    """Put something that is no file where a file is, or beside it."""
    path = pick(rng, [folder / "odd", pick(rng, files_in(folder))])
    if path.exists():
        path.unlink()
    action = int(rng.integers(4))
    if action == 0:
        path.mkdir()
    elif action == 1:
        path.symlink_to("/dev/zero")
    elif action == 2:
        os.mkfifo(path)
    else:
        path.symlink_to(folder)


def rename_file(folder, _, rng):
    path = pick(rng, files_in(folder))
    path.rename(path.with_name(pick(rng, ["other.csv", "MESSAGE.JSON", path.name + ".csv"])))


def swap_file(folder, others, rng):
    path = pick(rng, files_in(folder))
    shutil.copyfile(pick(rng, files_in(pick(rng, others))), path)


RAW_FOLDER = [change_file, remove_file, add_file, add_odd, rename_file, swap_file]


def seal_folder(folder, document):
    """Write `message.json` with the checksums of the files as they are now."""
    for name, entry in (document.get("files") or {}).items():
        path = folder / str(name)
        if isinstance(entry, dict) and path.is_file():
            content = path.read_bytes()
            entry["sha256"] = hashlib.sha256(content).hexdigest()
            entry["rows"] = content.count(b"\n") - 1
    document.pop("sha256", None)
    seal_document(folder, document)


def seal_document(folder, document):
    try:
        checksum = hashlib.sha256(canonical(document)).hexdigest()
    except ValueError:  # not finite: no checksum would fit
        checksum = "0" * 64
    if isinstance(document, dict):
        document["sha256"] = checksum
    (folder / MESSAGE).write_bytes(json.dumps(document).encode("utf-8", "surrogatepass"))


def edit_message(folder, _, rng):
    document = json.loads((folder / MESSAGE).read_text(encoding="utf-8"))
    del document["sha256"]
    edit_tree(document, rng)
    seal_document(folder, document)


def edit_message_text(folder, _, rng):
    text = (folder / MESSAGE).read_text(encoding="utf-8").strip()
    text = edit_json_text(text, rng)
    (folder / MESSAGE).write_bytes(text.encode("utf-8", "surrogatepass"))


def edit_csv(text, rng):
    """Change cells, rows or columns of a table."""
    rows = [line.split(",") for line in text.split("\n")]
    row = int(rng.integers(len(rows)))
    action = int(rng.integers(6))
    if action == 0:
        rows = rows[:row] + rows[row + 1 :]
    elif action == 1:
        rows = rows[: row + 1] + rows[row:]
    elif action == 2:
        rows[row] = rows[row][:-1]
    elif action == 3:
        rows = rows[:1] + rows[:0:-1]
    else:
        rows[row][int(rng.integers(len(rows[row])))] = pick(rng, CELLS)
    return "\n".join(",".join(cells) for cells in rows)


def edit_table(folder, _, rng):
    """Change a table, and everything that says what it was."""
    tables = [path for path in files_in(folder) if path.suffix == ".csv"]
    if not tables:
        return edit_message(folder, _, rng)
    path = pick(rng, tables)
    text = edit_csv(path.read_bytes().decode("utf-8", "replace"), rng)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    if path.parent.name == RELEASE:
        return seal_release(path.parent)
    document = json.loads((folder / MESSAGE).read_text(encoding="utf-8"))
    return seal_folder(folder, document)


def edit_manifest(folder, _, rng):
    """Change what the manifest of a release says."""
    path = folder / RELEASE / "manifest.json"
    if not path.exists():
        return edit_message(folder, _, rng)
    document = json.loads(path.read_text(encoding="utf-8"))
    edit_tree(document, rng)
    return path.write_text(json.dumps(document), encoding="utf-8", errors="surrogatepass")


def seal_release(folder):
    """Give the files of a release folder the checksums that they have now."""
    path = folder / "manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    for name, entry in document["files"].items():
        content = (folder / name).read_bytes()
        entry |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        if entry["rows"] is not None:
            entry["rows"] = content.count(b"\n") - 1
    path.write_text(json.dumps(document), encoding="utf-8")


SEALED_FOLDER = [
    edit_message,
    edit_message,
    edit_message_text,
    edit_table,
    edit_table,
    edit_manifest,
]
