"""Check the built wheel and sdist: tracked files and nothing else, and the wheel alone works.

    python .ci/check_release.py dist [TAG]

With a tag, also that tag, version and changelog name the same release.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import silomix

ROOT = Path(__file__).parents[1]
MADE = {"PKG-INFO", ".gitignore"}
"""What a build adds to the sdist, or takes whether it is asked to or not."""


def main(folder: str, tag: str = "") -> None:
    """Stop with a sentence at the first fault."""
    wheel, sdist = (only(Path(folder), pattern) for pattern in ("*.whl", "*.tar.gz"))
    tracked = set(run("git", "ls-files", cwd=ROOT).splitlines())
    check_files(wheel, sdist, tracked)
    if tag:
        check_tag(tag)
    with TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        programs = Path(place) / "bin"
        pip = [programs / "python", "-m", "pip", "install", "--quiet"]
        run(*pip, "-c", ROOT / "constraints.txt", wheel.resolve(), cwd=place)
        # in an empty folder, where no source can be found by chance
        said = run(programs / "silomix", "demo", "--quiet", "--out", "demo-output", cwd=place)
        sys.stdout.write(said)
        if not (Path(place) / "demo-output" / "report.html").is_file():
            raise SystemExit("the demonstration wrote no report")


def check_files(wheel: Path, sdist: Path, tracked: set[str]) -> None:
    """Compare what was packed with what is tracked."""
    with tarfile.open(sdist) as packed:
        source = {name.partition("/")[2] for name in packed.getnames()} - MADE
    with zipfile.ZipFile(wheel) as packed:
        files = {f"src/{name}" for name in packed.namelist() if ".dist-info/" not in name}
    report("the sdist has files that are not tracked", source - tracked)
    report("the sdist lacks tracked files", tracked - MADE - source)
    report(
        "the wheel has other files than the package",
        files ^ {name for name in tracked if name.startswith("src/")},
    )


def check_tag(tag: str) -> None:
    """Compare a tag with the version, and that with all places that name it."""
    version = silomix.__version__
    lines = {
        "CHANGELOG.md": f"\n## [{version}]",
        "CITATION.cff": f"\nversion: {version}\n",
        "r/DESCRIPTION": f"\nVersion: {version}\n",
    }
    other = {name for name, line in lines.items() if line not in (ROOT / name).read_text("utf-8")}
    report(f"of another version than {version}", other | ({tag} - {f"v{version}"}))


def only(folder: Path, pattern: str) -> Path:
    """Return the one file that matches."""
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{folder} should have one {pattern}, and has {len(found)}")
    return found[0]


def report(fault: str, names: set[str]) -> None:
    """Stop if there are names."""
    if names:
        raise SystemExit(f"{fault}: {', '.join(sorted(names))}")


def run(*command: object, cwd: object) -> str:
    """Run a program and return what it prints."""
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=str(cwd), check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
