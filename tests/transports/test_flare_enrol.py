"""Enrolment by certificate request: keys stay where they are made, and wrong papers are refused."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="the extra flare is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from nvflare.lighter.utils import sign_content

from silomix import cli
from silomix.errors import FileError, SettingsError
from silomix.model.schema import Schema, Variable
from silomix.study import make_study, write_study
from silomix.transports.flare import startup_kit
from silomix.transports.flare.startup_kit import (
    enrol_site,
    provision,
    read_fingerprint,
    read_startup,
    request_certificate,
    sign_request,
)

STUDY = make_study(Schema((Variable("a", ("no", "yes")),)), ["north", "south"], seed=1)
KEYS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL
)


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """A federation that signs, another, and north's request signed by each: made once."""
    root = tmp_path_factory.mktemp("enrol")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root / "home"))  # FLARE keeps its records there
        before = os.umask(0)  # a careless one: what is private is so whatever it says
        try:
            made, foreign = root / "kits", root / "foreign"
            told = provision(STUDY.silos, made, by_request=True)
            provision(STUDY.silos, foreign)
            asked, key = request_certificate("north", root / "north")
            other, other_key = request_certificate("north", root / "other")
            signed, strange = root / "north.signed.zip", root / "strange.zip"
            fingerprint = sign_request(asked, made / "authority", "north", key=key, out=signed)
            sign_request(asked, foreign / "authority", "north", key=key, out=strange)
            enrolled = enrol_site(signed, root / "north", root / "kit", authority=fingerprint)
        finally:
            os.umask(before)
        yield SimpleNamespace(
            kits=made, foreign=foreign, request=root / "north", asked=asked, key=key,
            other=other, other_key=other_key, signed=signed, strange=strange,
            fingerprint=fingerprint, told=told, enrolled=enrolled, kit=root / "kit",
        )  # fmt: skip


@pytest.fixture
def authority(papers, tmp_path):
    """An authority of one's own, to spoil, which has signed nothing yet."""
    folder = shutil.copytree(papers.kits / "authority", tmp_path / "authority")
    shutil.rmtree(folder / "issued")
    return folder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def key_of(path):
    return load_pem_private_key(path.read_bytes(), password=None)


def certificate_of(content):
    return x509.load_pem_x509_certificate(content)


def public(key):
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def private_keys(folder):
    """Every private key in the files of a folder, as its public half."""
    found = set()
    for path in filter(Path.is_file, folder.rglob("*")):
        text = path.read_bytes().decode("latin-1").replace("\\n", "\n")
        keys = (load_pem_private_key(key.encode(), password=None) for key in KEYS.findall(text))
        found |= {public(key) for key in keys}
    return found


def contents(file):
    with zipfile.ZipFile(file) as members:
        return {name: members.read(name) for name in members.namelist()}


def changed(file, path, changes):
    """Write a copy of a zip file with some members changed: to bytes, or in fields of JSON."""
    members = contents(file)
    for name, change in changes.items():
        if isinstance(change, dict):
            change = json.dumps(json.loads(members[name]) | change).encode()
        members[name] = change
    with zipfile.ZipFile(path, "w") as written:
        for name, content in members.items():
            written.writestr(name, content)
    return path


class TestKeys:
    @pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
    def test_only_its_owner_may_read_a_key(self, papers):
        for made in (papers.kits, papers.foreign):
            authority = made / "authority"
            assert mode(papers.request) == mode(authority) == 0o700
            keys = [authority / "rootCA.key", authority / "silomix" / "state" / "cert.json"]
            keys += [papers.request / "north.key", papers.kit / "startup" / "client.key"]
            assert [mode(key) for key in keys] == [0o600] * 4

    def test_the_coordinator_has_no_key_of_a_silo(self, papers):
        own = public(key_of(papers.request / "north.key"))
        held = private_keys(papers.kits)
        assert own not in held
        named = ["authority/rootCA.key", "server/startup/server.key", "admin/startup/client.key"]
        assert held == {public(key_of(papers.kits / name)) for name in named}
        assert {path.name for path in papers.kits.iterdir()} == {"admin", "authority", "server"}
        assert private_keys(papers.kit) == {own}

        provisioned = public(key_of(papers.foreign / "north" / "startup" / "client.key"))
        assert provisioned in private_keys(papers.foreign / "authority")  # the other way

    def test_nothing_that_is_sent_has_a_key(self, papers):
        for file in (papers.asked, papers.signed):
            assert not any(b"PRIVATE" in content for content in contents(file).values())

    def test_the_kit_is_the_silos_and_trusts_the_authority(self, papers):
        assert papers.enrolled == ("north", "grpc://localhost:8002")
        assert papers.fingerprint == papers.told
        assert read_startup(papers.kit, "client")["fqsn"] == "north"
        root = (papers.kits / "authority" / "rootCA.pem").read_bytes()
        startup = papers.kit / "startup"
        assert (startup / "rootCA.pem").read_bytes() == root
        certificate = certificate_of((startup / "client.crt").read_bytes())
        certificate.verify_directly_issued_by(certificate_of(root))
        days = (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days
        assert 359 <= days <= 360

    def test_a_folder_in_use_is_left_alone(self, papers, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(SettingsError, match="give a new one"):
            request_certificate("north", tmp_path)
        with pytest.raises(SettingsError, match="give a new one"):
            enrol_site(papers.signed, papers.request, tmp_path, authority=papers.fingerprint)


class TestSigning:
    def refused(self, papers, authority, words, request=None, silo="north", key=None):
        out = authority.parent / "signed.zip"
        with pytest.raises((FileError, SettingsError), match=words):
            sign_request(request or papers.asked, authority, silo, key=key or papers.key, out=out)
        assert not out.exists() and not (authority / "issued").exists()

    def test_a_request_in_another_name_or_with_another_key(self, papers, authority):
        self.refused(papers, authority, "has the name 'north', not 'south'", silo="south")
        self.refused(papers, authority, "has the public_key_sha256", papers.other)
        for text in ("-", "12:34", "SHA256:" + "0" * 63, "g" * 64):
            self.refused(papers, authority, "is not a SHA-256 fingerprint", key=text)

    @pytest.mark.parametrize("what", ["name", "key", "key and hash", "signature"])
    def test_a_request_changed_on_the_way(self, papers, authority, tmp_path, what):
        other = contents(papers.other)["north.csr"]
        der = x509.load_pem_x509_csr(contents(papers.asked)["north.csr"]).public_bytes(Encoding.DER)
        flipped = der[:-1] + bytes([der[-1] ^ 1])
        forged = x509.load_der_x509_csr(flipped).public_bytes(Encoding.PEM)
        hashed = {csr: {"csr_sha256": hashlib.sha256(csr).hexdigest()} for csr in (other, forged)}
        words, change = {
            "name": ("", {"request.json": {"name": "south"}}),
            "key": ("CSR hash does not match", {"north.csr": other}),
            "key and hash": (
                "CSR public key hash does not match",
                {"north.csr": other, "request.json": hashed[other]},
            ),
            "signature": (".*CSR", {"north.csr": forged, "request.json": hashed[forged]}),
        }[what]
        request = changed(papers.asked, tmp_path / "r.zip", change)
        silo = "south" if what == "name" else "north"
        self.refused(papers, authority, f"FLARE refuses: {words}", request, silo=silo)

    @pytest.mark.parametrize(
        "said",
        [
            {"kind": "server", "cert_type": "server"},
            {"kind": "user", "cert_type": "lead"},
            {"cert_type": "project_admin"},
            {"org": "elsewhere"},
            *(b"[" * 100_000, b" " * (2 << 20) + b"{}", b"[]", b"1"),
        ],
        ids=lambda said: str(said)[:30],
    )
    def test_only_silos_are_enrolled(self, papers, authority, tmp_path, said):
        request = changed(papers.asked, tmp_path / "r.zip", {"request.json": said})
        self.refused(papers, authority, "made, or is damaged|sign only what", request)

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda content: b"",
            lambda content: bytes(1 << 21),
            lambda content: content[: len(content) // 2],
            lambda content: content.replace(b"request.json", b"request.jsan"),
            lambda content: content[:60] + b"\xff" * 40 + content[100:],
        ],
    )
    def test_a_damaged_request(self, papers, authority, tmp_path, spoil):
        request = tmp_path / "r.zip"
        request.write_bytes(spoil(papers.asked.read_bytes()))
        self.refused(papers, authority, "made, or is damaged", request)
        self.refused(papers, authority, "made, or is damaged", tmp_path / "absent.zip")

    def test_an_authority_that_has_expired_or_is_none(self, papers, authority, tmp_path):
        root = certificate_of((authority / "rootCA.pem").read_bytes())
        old = reissued(root, key_of(authority / "rootCA.key"), root.subject)
        (authority / "rootCA.pem").write_bytes(old)
        (authority / "ca.json").write_text(json.dumps({"project": "silomix"}))
        self.refused(papers, authority, "FLARE refuses: .*CA certificate expired")
        self.refused(papers, tmp_path / "absent", "FLARE refuses")

    def test_a_second_certificate_is_given_on_purpose_only(self, papers, authority, tmp_path):
        out = tmp_path / "signed.zip"
        found = sign_request(papers.asked, authority, "north", key=papers.key, out=out)
        assert found == papers.fingerprint
        other = {"key": papers.other_key, "out": out}
        with pytest.raises(SettingsError, match=r"has a certificate already, .*stays valid until"):
            sign_request(papers.other, authority, "north", **other)
        assert sign_request(papers.other, authority, "north", again=True, **other)


def reissued(certificate, signer, issuer):
    """The same certificate, signed for last year."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(certificate.subject)
        .issuer_name(issuer)
        .public_key(certificate.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=400))
        .not_valid_after(now - datetime.timedelta(days=40))
    )
    for extension in certificate.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


def signed_anew(papers, path, said, **more):
    """What the authority would have signed, had it wanted to."""
    key = key_of(papers.kits / "authority" / "rootCA.key")
    content = json.dumps(json.loads(contents(papers.signed)["signed.json"]) | said).encode()
    changes = {"signed.json": content, "signed.json.sig": sign_content(content, key).encode()}
    return changed(papers.signed, path, changes | more)


class TestEnrolling:
    def refused(self, papers, folder, words, *, signed=None, request=None):
        out = folder / "site" / "kit"
        papers_of_the_site = (signed or papers.signed, request or papers.request)
        with pytest.raises(FileError, match=words):
            enrol_site(*papers_of_the_site, out, authority=papers.fingerprint)
        assert not out.parent.exists() or not list(out.parent.iterdir())

    @pytest.mark.parametrize("what", ["root", "server", "certificate"])
    def test_an_answer_changed_on_the_way(self, papers, tmp_path, what):
        strange = contents(papers.strange)
        server = {"host": "evil.example", "fed_learn_port": 8002, "admin_port": 8002}
        words, change = {
            "root": ("signature is invalid", {"rootCA.pem": strange["rootCA.pem"]}),
            "server": ("signature is invalid", {"signed.json": {"server": server}}),
            "certificate": ("Hash mismatch for cert", {"north.crt": strange["north.crt"]}),
        }[what]
        signed = changed(papers.signed, tmp_path / "s.zip", change)
        self.refused(papers, tmp_path, f"FLARE refuses: .*{words}", signed=signed)
        words = "FLARE refuses: Root CA SHA256 fingerprint does not match"
        self.refused(papers, tmp_path, words, signed=papers.strange)

    def test_a_certificate_that_has_expired(self, papers, tmp_path):
        authority = papers.kits / "authority"
        issuer = certificate_of((authority / "rootCA.pem").read_bytes()).subject
        sent = contents(papers.signed)
        old = reissued(certificate_of(sent["north.crt"]), key_of(authority / "rootCA.key"), issuer)
        hashed = json.loads(sent["signed.json"])["hashes"]
        hashed |= {"certificate_sha256": hashlib.sha256(old).hexdigest()}
        more = {"north.crt": old}
        signed = signed_anew(papers, tmp_path / "s.zip", {"hashes": hashed}, **more)
        self.refused(papers, tmp_path, "FLARE refuses: .*expired", signed=signed)

    def test_another_request_or_key_than_was_signed(self, papers, tmp_path):
        other = papers.other.parent
        words = "does not match the signed zip request_id"
        self.refused(papers, tmp_path, words, request=other)
        folder = shutil.copytree(papers.request, tmp_path / "request")
        shutil.copy(other / "north.key", folder)
        words = "The local private key does not match the signed certificate"
        self.refused(papers, tmp_path, words, request=folder)

    def test_an_authority_that_wants_no_certificates(self, papers, tmp_path):
        clear = {"default_connection_security": "clear"}
        signed = signed_anew(papers, tmp_path / "s.zip", clear)
        self.refused(papers, tmp_path, "with the security 'clear'", signed=signed)

    def test_files_that_are_none(self, papers, tmp_path):
        self.refused(papers, tmp_path, "FLARE refuses", request=tmp_path)
        self.refused(papers, tmp_path, "there is no file", signed=tmp_path / "absent.zip")


class TestCommands:
    def run(self, *words):
        return CliRunner().invoke(cli.app, ["flare", *(str(word) for word in words)])

    def done(self, *words):
        result = self.run(*words, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def test_the_page_works_as_printed(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path)
        write_study(STUDY, Path("study.toml"))
        page = (Path(__file__).parents[2] / "docs" / "how-to" / "flare.md").read_text("utf-8")
        section = page.partition("### By request")[2].partition("\n### ")[0]
        printed = re.findall(r"^\$ silomix flare (.*)$", section, re.MULTILINE)
        provisioning, requesting, signing, enrolling = lines = [*map(shlex.split, printed)]
        assert [line[0] for line in lines] == ["provision", "request", "sign", "enrol"]
        told = self.done(*provisioning)
        assert told["kits"] == ["kits/server", "kits/admin"]
        asked = self.done(*requesting)
        shutil.copy(asked["request"], tmp_path)  # all that is sent
        signing[signing.index("SHA256:...")] = asked["fingerprint"]
        assert self.done(*signing)["fingerprint"] == told["fingerprint"]
        enrolling[enrolling.index("SHA256:...")] = told["fingerprint"]
        server = "grpc://coordinator.example.org:8002"
        assert self.done(*enrolling) == {"kit": "north-kit", "silo": "north", "server": server}
        assert read_startup(Path("north-kit"), "client")["fqsn"] == "north"
        again = self.run(*signing)
        assert again.exit_code == 4
        assert "give --force to replace" in again.output
        shown = self.run(*signing, "--force")
        assert f"Fingerprint of the authority: {told['fingerprint']}" in shown.output.splitlines()

    def test_a_silo_that_is_not_in_the_study(self, tmp_path):
        study = write_study(STUDY, tmp_path / "study.toml")
        failed = self.run("request", study, "--silo", "east", "--out", tmp_path / "out")
        assert failed.exit_code == 5
        assert "the study has no silo 'east'" in failed.output


@pytest.mark.parametrize("before", ["", "SHA256:", "sha256 Fingerprint="])
def test_a_fingerprint_as_programs_spell_it(before):
    spelled = "SHA256:" + ":".join(["AB"] * 32)
    assert read_fingerprint("ab" * 32) == spelled
    assert read_fingerprint(before + ":".join(["ab"] * 32)) == spelled


def test_a_host_that_is_no_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(SettingsError, match=r"FLARE cannot provision this federation: .*host"):
        provision(["north"], tmp_path / "kits", host="not a host")
    assert not list((tmp_path / "kits").iterdir())


def test_a_command_of_flare_that_does_not_say_why(monkeypatch):
    monkeypatch.setattr(startup_kit.sys, "executable", shutil.which("false") or "false")
    with pytest.raises(FileError, match="it does not say why"):
        startup_kit._run_flare("cert", "init")
