"""Messages made wrong in many ways, the same ways for the same seed.

A mutation is either raw, which a digest catches, or sealed: digests are made again, as somebody
with bad intentions would, so that the layers behind them are reached.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import signal
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
from safetensors.numpy import load, save

from silomix.messages.container import HEAD
from silomix.messages.folder import _read_arrays as read_arrays

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
KINDS = ["<f4", "<f8", "<i8", "<i4", "|u1", "<u2", "<u8", "|b1", "<f2", "<c8"]
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
    """Claim another length of the header, up to that of a bomb, or other things in it."""
    length = int.from_bytes(data[:8], "little")
    huge = pick(rng, [0, 1, 2, length - 1, length + 1, 2**16, 2**31, 2**63])
    edits = [
        (b"F64", b"F16"), (b"F64", b"C64"), (b"I64", b"F64"), (b'"shape":[', b'"shape":[0,'),
        (b'"shape":[', b'"shape":[9999999999,'), (b'_offsets":[', b'_offsets":[1'),
        (HEAD.encode(), b"elsewhere.js"), (b'{"', b'{"__metadata__":{"a":"b"},"'),
    ]  # fmt: skip
    header = data[8 : 8 + length].replace(*pick(rng, edits), 1)
    return pick(
        rng,
        [
            huge.to_bytes(8, "little") + data[8:],
            len(header).to_bytes(8, "little") + header + data[8 + length :],
        ],
    )


RAW = [flip_bits, truncate, extend, splice, lie_in_prefix]


def split_message(data):
    """Return the head, as text, and the arrays of a message in bytes."""
    arrays = load(data)
    return arrays.pop(HEAD).tobytes().decode(), arrays


def join_message(head, arrays):
    """Return a message with this head, as text, and arrays."""
    text = np.frombuffer(head.encode("utf-8", "surrogatepass"), np.uint8)
    return save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()} | {HEAD: text}
    )


def seal_message(document, arrays):
    """Return a message whose digest is that of what is in it."""
    if isinstance(document, dict):
        document["content"] = content_of(document, arrays)
    return join_message(json.dumps(document, ensure_ascii=False), arrays)


def content_of(document, arrays):
    inside = {"kind": document.get("kind"), "fields": document.get("fields")}
    text = json.dumps(inside, ensure_ascii=False)
    return hashlib.sha256(join_message(text, arrays)).hexdigest()


def edit_head(data, _, rng):
    head, arrays = split_message(data)
    document = json.loads(head)
    edit_tree(document, rng)
    return seal_message(document, arrays)


def edit_text(data, _, rng):
    head, arrays = split_message(data)
    return join_message(edit_json_text(head, rng), arrays)


def edit_json_text(text, rng):
    """Break JSON as text: keys twice, depth, numbers of many digits, or any other character."""
    place = int(rng.integers(len(text)))
    deep = pick(rng, [10, 100, 100_000])
    return pick(
        rng,
        [
            text.replace('"number"', '"number": 1, "number"', 1),
            text.replace('"kind"', '"kind": [1], "kind"', 1),
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


def wrong_array(array, rng):
    """Return an array with a number that no reader likes, of another order, type or shape."""
    array = np.array(array, ndmin=1)
    with np.errstate(all="ignore"):
        if array.size:
            odd = np.array(pick(rng, NUMBERS if array.dtype.kind == "f" else WHOLE))
            array.flat[int(rng.integers(array.size))] = odd.astype(array.dtype)
        cast = array.astype(pick(rng, KINDS))
    shapes = [array.T, array[None], array[..., :0], array[:1], np.concatenate([array, array])]
    return np.ascontiguousarray(pick(rng, [array, array, array, np.roll(array, 1), cast, *shapes]))


def edit_arrays(data, others, rng):
    """Change arrays, swap two of them, or have one more or one less."""
    head, arrays = split_message(data)
    if not arrays:
        return edit_head(data, others, rng)
    name, other = pick(rng, list(arrays)), pick(rng, list(arrays))
    arrays[name] = wrong_array(arrays[name], rng)
    if rng.random() < 0.2:
        arrays[name], arrays[other] = arrays[other], arrays[name]
    if rng.random() < 0.2:
        arrays[pick(rng, ["more", "", ".", "silo", "policy.x", "releases.-1.mean", "é"])] = arrays[
            name
        ]
    if rng.random() < 0.2:
        del arrays[name]
    return seal_message(json.loads(head), arrays)


def swap_parts(data, others, rng):
    head, arrays = json.loads(split_message(data)[0]), split_message(pick(rng, others))[1]
    return seal_message(head, arrays)


SEALED = [edit_head, edit_head, edit_text, edit_arrays, edit_arrays, swap_parts]


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


def add_file(folder, others, rng):
    name = pick(rng, ["notes.txt", "weights.csv", "weights_2.csv", ".hidden", "é\n.csv", "x" * 200])
    (folder / name).write_bytes(pick(rng, files_in(pick(rng, others))).read_bytes())


def add_odd(folder, _, rng):
    """Put something that is no file where a file is, or beside it."""
    path = pick(rng, [folder / "odd", pick(rng, files_in(folder))])
    if path.exists():
        path.unlink()
    make = [os.mkdir, os.mkfifo, partial(os.symlink, "/dev/zero"), partial(os.symlink, folder)]
    pick(rng, make)(path)


def lose_file(folder, _, rng):
    """Remove a file, or give it another name."""
    path = pick(rng, files_in(folder))
    name = pick(rng, ["", "other.csv", "MESSAGE.JSON", path.name + ".csv"])
    path.rename(path.with_name(name)) if name else path.unlink()


def swap_file(folder, others, rng):
    path = pick(rng, files_in(folder))
    shutil.copyfile(pick(rng, files_in(pick(rng, others))), path)


RAW_FOLDER = [change_file, lose_file, lose_file, add_file, add_odd, swap_file]


def seal_folder(folder, document, *, content=False):
    """Write `message.json` with the checksums of the files as they are now."""
    files = {p.name: p.read_bytes() for p in files_in(folder) if p.name != HEAD}
    for name in document.get("files") if isinstance(document.get("files"), dict) else ():
        if name in files:
            document["files"][name] = hashlib.sha256(files[name]).hexdigest()
    if content:
        with suppress(Exception):
            document["content"] = content_of(document, read_arrays(files))
    text = json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass")
    (folder / HEAD).write_bytes(text + b"\n")


def edit_message(folder, _, rng):
    document = json.loads((folder / HEAD).read_text(encoding="utf-8"))
    edit_tree(document, rng)
    seal_folder(folder, document, content=rng.random() < 0.5)


def edit_message_text(folder, _, rng):
    text = (folder / HEAD).read_text(encoding="utf-8").strip()
    text = edit_json_text(text, rng)
    (folder / HEAD).write_bytes(text.encode("utf-8", "surrogatepass"))


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
    document = json.loads((folder / HEAD).read_text(encoding="utf-8"))
    return seal_folder(folder, document, content=rng.random() < 0.5)


SEALED_FOLDER = [edit_message, edit_message, edit_message_text, edit_table, edit_table, edit_table]
