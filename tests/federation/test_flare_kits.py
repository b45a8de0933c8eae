"""Hostile kits: nothing that came with one runs, whatever FLARE would make of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="the extra flare is not installed")

from federation.flare_cases import free_port, kill_tree
from nvflare.apis.fl_constant import ConfigVarName

from silomix.model.table import load
from silomix.simulate import simulate
from silomix.study import make_study, write_study
from silomix.transports.flare.participant import build_kits
from silomix.transports.flare.startup_kit import provision

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study, north's table and north's kit; and all that FLARE's own kit would have."""
    root = tmp_path_factory.mktemp("kits")
    table, _ = simulate("non-nested", rows=80, silos=2, seed=1)
    table.drop(columns="silo").to_csv(root / "table.csv", index=False)
    schema = load(table.drop(columns="silo")).schema
    study = make_study(schema, ["north", "south"], iterations=40, tier="draws", seed=1)
    write_study(study, root / "study.toml")
    port = free_port()  # where nobody listens
    provision(study.silos, root / "kits", port=port, trial=True)
    shutil.copytree(build_kits(root, "localhost", port, ["north"]) / "north", root / "whole")
    return root


@pytest.fixture
def kit(made, tmp_path):
    return shutil.copytree(made / "kits" / "north", tmp_path / "north")


@pytest.fixture
def marker(tmp_path):
    """A file that hostile code would make."""
    return tmp_path / "marker"


def change(file, edit):
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def component(marker):
    return {"id": "evil", "path": "subprocess.Popen", "args": {"args": ["touch", str(marker)]}}


def module(folder, marker, name="evil"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")


def a_component(kit, marker):
    file = kit / "local" / "resources.json.default"
    change(file, lambda content: content["components"].append(component(marker)))


def a_module(kit, marker):
    module(kit / "local" / "custom", marker)
    own = {"id": "evil", "path": "evil.Evil", "args": {}}
    file = kit / "local" / "resources.json.default"
    change(file, lambda content: content["components"].append(own))


def a_decomposer(kit, marker):
    module(kit / "local" / "custom" / ConfigVarName.DECOMPOSER_MODULE, marker)


def a_log_handler(kit, marker):
    evil = {"()": "subprocess.Popen", "args": ["touch", str(marker)]}
    file = kit / "local" / "log_config.json.default"
    change(file, lambda content: content["handlers"].update(evil=evil))


def more_resources(kit, marker):
    content = {"format_version": 2, "components": [component(marker)]}
    (kit / "local" / "evil__p_resources.json").write_text(json.dumps(content))


def in_startup(kit, marker):
    more_resources(kit, marker)
    file = kit / "local" / "evil__p_resources.json"
    file.replace(kit / "startup" / "evil__resources.json")
    shutil.rmtree(kit / "local")


def in_the_address(kit, marker):
    shutil.rmtree(kit / "local")
    edit = {"components": [component(marker)]}
    change(kit / "startup" / "fed_client.json", lambda content: content.update(edit))


def as_validator(kit, marker):
    shutil.rmtree(kit / "local")
    edit = {"app_validator": component(marker)}
    change(kit / "startup" / "fed_client.json", lambda content: content.update(edit))


def site(made, kit, *more, policy="open", cwd=None):
    """Start `silomix flare site` and return its process."""
    words = ["site", kit, "--data", made / "table.csv", "--study", made / "study.toml"]
    words += ["--policy", policy, "--ledger", kit.parent / "ledger.json", *more]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "silomix", "flare", *map(str, words)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, filter(None, sys.path)))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (a_component, "north/local/authorization.json.default does not belong in a start-up kit"),
        (a_module, "north/local/authorization.json.default does not belong"),
        (a_decomposer, "north/local/authorization.json.default does not belong"),
        (a_log_handler, "north/local/authorization.json.default does not belong"),
        (more_resources, "north/local/authorization.json.default does not belong"),
        (in_startup, "north/startup/evil__resources.json does not belong in a start-up kit"),
        (in_the_address, 'fed_client.json has settings that no kit needs: {"components": [{"id"'),
        (as_validator, 'fed_client.json has settings that no kit needs: {"app_validator": {"id"'),
    ],
)
def test_a_kit_that_has_more_is_refused(made, kit, marker, attack, words):
    shutil.copytree(made / "whole" / "local", kit / "local")
    attack(kit, marker)
    process = site(made, kit)
    try:
        printed, _ = process.communicate(timeout=60)
    finally:
        kill_tree(process)
    assert not marker.exists()
    assert words in " ".join(printed.split())
    assert process.returncode == 5


def test_what_lies_beside_it_is_not_read(made, kit, marker):
    """Modules where Python looks first, and a folder in which FLARE might have run before."""
    for place in (kit, kit / "run", kit / "transfer"):
        module(place, marker, "sitecustomize")
        module(place, marker, "psutil")
        module(place / "nvflare", marker, "__init__")
    shutil.copytree(made / "whole" / "local", kit / "run" / "local")
    a_module(kit / "run", marker)
    a_log_handler(kit / "run", marker)
    more_resources(kit / "run", marker)
    process = site(made, Path(), "--store", kit / "store", cwd=kit)
    log, latest = kit / "run" / "log.txt", time.monotonic() + 60
    try:
        while not (log.exists() and log.read_text()):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < latest
            time.sleep(0.1)
    finally:
        kill_tree(process)
        process.stdout.close()
    assert not marker.exists()


def test_a_policy_that_cannot_answer_stops_the_site(made, kit):
    process = site(made, kit, policy="default")
    printed, _ = process.communicate(timeout=60)
    assert "asks for a release of tier 'draws' and its policy 'default' allows" in " ".join(
        printed.split()
    )
    assert process.returncode == 6
    assert not (kit / "run").exists()
