"""The check of what is published: a file too many, or too few, stops a release."""

from __future__ import annotations

import tarfile
import zipfile

import pytest
from cases.script_cases import script

TRACKED = {"src/silomix/__init__.py", "README.md", "pyproject.toml"}


@pytest.fixture(scope="module")
def release():
    with script(".ci", "check_release") as (module, _):
        yield module


def pack(folder, source, package):
    """Write a wheel and an sdist with these files, all empty."""
    for name in source:
        path = folder / "silomix-1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    wheel, sdist = folder / "silomix-1.whl", folder / "silomix-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as packed:
        for name in source:
            packed.add(folder / "silomix-1" / name, f"silomix-1/{name}")
    with zipfile.ZipFile(wheel, "w") as packed:
        for name in package:
            packed.writestr(name, "")
    return wheel, sdist


@pytest.mark.parametrize(
    ("more", "missing", "package", "named"),
    [
        ({"PKG-INFO"}, set(), ["silomix/__init__.py", "silomix-1.dist-info/METADATA"], ""),
        ({"rows.csv"}, set(), ["silomix/__init__.py"], "rows.csv"),
        (set(), {"README.md"}, ["silomix/__init__.py"], "README.md"),
        (set(), set(), ["silomix/__init__.py", "silomix/rows.csv"], "src/silomix/rows.csv"),
        (set(), set(), [], "src/silomix/__init__.py"),
    ],
)
def test_files_are_those_tracked(release, tmp_path, more, missing, package, named):
    packed = pack(tmp_path, (TRACKED | more) - missing, package)
    if not named:
        release.check_files(*packed, TRACKED)
        return
    with pytest.raises(SystemExit, match=named):
        release.check_files(*packed, TRACKED)


def test_a_tag_needs_its_version_everywhere(release, monkeypatch, tmp_path):
    version = release.silomix.__version__
    with pytest.raises(SystemExit, match=r"v0\.1\.1"):
        release.check_tag("v0.1.1")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "r").mkdir()
    (tmp_path / "CHANGELOG.md").write_text(f"\n## [{version}]\n")
    (tmp_path / "CITATION.cff").write_text(f"\nversion: {version}\n")
    (tmp_path / "r" / "DESCRIPTION").write_text(f"\nVersion: {version}\n")
    release.check_tag(f"v{version}")
    (tmp_path / "CHANGELOG.md").write_text("\n## [Unreleased]\n")
    with pytest.raises(SystemExit, match=r"CHANGELOG\.md"):
        release.check_tag(f"v{version}")


def test_all_but_the_changelog_name_the_version(release):
    """The changelog says Unreleased until the release."""
    for name, key in (("CITATION.cff", "version"), ("r/DESCRIPTION", "Version")):
        text = (release.ROOT / name).read_text(encoding="utf-8")
        assert f"\n{key}: {release.silomix.__version__}\n" in text
