"""Enrolment by certificate request: keys stay where they are made, and wrong papers are refused."""

from __future__ import annotations

import datetime
import hashlib
import io
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
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from nvflare.lighter.utils import sign_content

from silomix.cli import flare as commands
from silomix.errors import FileError, SettingsError
from silomix.study import make_study, write_study
from silomix.transports.flare import tool
from silomix.transports.flare.enrol import (
    LARGEST,
    check_roster,
    enrol_site,
    fingerprint,
    request_certificate,
    sign_request,
)
from silomix.transports.flare.kit import read_json, site_name
from silomix.transports.flare.provision import provision, root_fingerprint
from silomix.types import Schema, Variable

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
            kits, foreign = (
                provision(STUDY.silos, root / name, by_request=True) for name in ("kits", "foreign")
            )
            asked = request_certificate("north", root / "north")
            other = request_certificate("north", root / "other")
            told = {"key": asked.fingerprint}
            signed = sign_request(
                asked.file, kits / "authority", "north", out=root / "north.signed.zip", **told
            )
            strange = sign_request(
                asked.file, foreign / "authority", "north", out=root / "strange.zip", **told
            )
            enrolled = enrol_site(
                signed.file, root / "north", root / "kit", authority=signed.fingerprint
            )
        finally:
            os.umask(before)
        yield SimpleNamespace(
            kits=kits, foreign=foreign, request=root / "north", asked=asked, other=other,
            signed=signed, strange=strange, enrolled=enrolled, root=root_fingerprint(kits),
        )  # fmt: skip


@pytest.fixture
def authority(papers, tmp_path):
    """An authority of one's own, to spoil, which has signed nothing yet."""
    folder = shutil.copytree(papers.kits / "authority", tmp_path / "authority")
    shutil.rmtree(folder / "issued")
    return folder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def key_of(text):
    return load_pem_private_key(text, password=None)


def public(key):
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def private_keys(folder):
    """Every private key in the files of a folder, as its public half."""
    found = set()
    for path in folder.rglob("*"):
        if path.is_file():
            text = path.read_bytes().decode("latin-1").replace("\\n", "\n")
            found |= {public(key_of(key.encode())) for key in KEYS.findall(text)}
    return found


def changed(file, path, /, **contents):
    """Write a copy of a zip file with some members changed, by name with _ for the dot."""
    with zipfile.ZipFile(file) as members:
        all_ = {name: members.read(name) for name in members.namelist()}
    for name, change in contents.items():
        name = name.replace("_", ".")
        all_[name] = change(all_[name]) if callable(change) else change
    with zipfile.ZipFile(path, "w") as members:
        for name, content in all_.items():
            members.writestr(name, content)
    return path


def edited(**values):
    """A change of a JSON file."""
    return lambda content: json.dumps(json.loads(content) | values).encode()


class TestKeys:
    @pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
    def test_only_its_owner_may_read_a_key(self, papers):
        authority = papers.kits / "authority"
        assert mode(papers.request) == mode(authority) == 0o700
        keys = [papers.request / "north.key", papers.enrolled.kit / "startup" / "client.key"]
        keys += [authority / "rootCA.key", authority / "silomix" / "state" / "cert.json"]
        assert [mode(key) for key in keys] == [0o600] * 4

    def test_the_coordinator_has_no_key_of_a_silo(self, papers):
        own = public(key_of((papers.request / "north.key").read_bytes()))
        held = private_keys(papers.kits)
        assert own not in held
        named = ["authority/rootCA.key", "server/startup/server.key", "admin/startup/client.key"]
        assert held == {public(key_of((papers.kits / name).read_bytes())) for name in named}
        assert sorted(path.name for path in papers.kits.iterdir()) == [
            "admin", "authority", "server",
        ]  # fmt: skip
        assert private_keys(papers.enrolled.kit) == {own}

    def test_provisioned_kits_are_the_other_way(self, tmp_path):
        kits = provision(["north"], tmp_path / "kits")
        own = public(key_of((kits / "north" / "startup" / "client.key").read_bytes()))
        assert own in private_keys(kits / "authority")

    def test_nothing_that_is_sent_has_a_key(self, papers):
        for file in (papers.asked.file, papers.signed.file):
            with zipfile.ZipFile(file) as members:
                assert not any(b"PRIVATE" in members.read(name) for name in members.namelist())

    def test_the_kit_is_the_silos_and_trusts_the_authority(self, papers):
        kit = papers.enrolled.kit
        assert papers.enrolled.silo == site_name(kit) == "north"
        assert papers.enrolled.server == "grpc://localhost:8002"
        assert read_json(kit / "startup" / "fed_client.json")["client"]["fqsn"] == "north"
        root = (papers.kits / "authority" / "rootCA.pem").read_bytes()
        assert (kit / "startup" / "rootCA.pem").read_bytes() == root
        certificate = x509.load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(root))
        days = (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days
        assert 359 <= days <= 360

    def test_a_folder_in_use_is_left_alone(self, papers, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(
            SettingsError, match="not empty, or no folder; give a new one for the k"
        ):
            request_certificate("north", tmp_path)
        with pytest.raises(SettingsError, match="give a new one for the kit"):
            enrol_site(papers.signed.file, papers.request, tmp_path, authority=papers.root)


class TestSigning:
    def sign(self, papers, authority, request, *, silo="north", key=None, **settings):
        told, out = key or papers.asked.fingerprint, authority.parent / "signed.zip"
        try:
            return sign_request(request, authority, silo, key=told, out=out, **settings)
        except (FileError, SettingsError):
            assert not out.exists() and not (authority / "issued").exists()
            raise

    def test_a_request_in_another_name(self, papers, authority):
        words = r"asks for a certificate in the name 'north', not 'south'; sign it only if"
        with pytest.raises(FileError, match=words):
            self.sign(papers, authority, papers.asked.file, silo="south")

    def test_a_request_with_another_key(self, papers, authority):
        with pytest.raises(FileError, match=r"has the fingerprint SHA256:.*, not the one given"):
            self.sign(papers, authority, papers.other.file)

    @pytest.mark.parametrize("text", ["", "12:34", "SHA256:" + "0" * 63, "g" * 64])
    def test_what_is_no_fingerprint(self, papers, authority, text):
        with pytest.raises(SettingsError, match="is no SHA-256 fingerprint; give all 64 digits"):
            sign_request(papers.asked.file, authority, "north", key=text, out=authority / "x.zip")

    def test_a_name_changed_on_the_way(self, papers, authority, tmp_path):
        request = changed(papers.asked.file, tmp_path / "r.zip", request_json=edited(name="south"))
        with pytest.raises(FileError, match=r"FLARE refuses: .*only: request.json, site.yaml, sou"):
            self.sign(papers, authority, request, silo="south")

    def test_a_key_swapped_on_the_way(self, papers, authority, tmp_path):
        with zipfile.ZipFile(papers.other.file) as members:
            other = members.read("north.csr")
        request = changed(papers.asked.file, tmp_path / "r.zip", north_csr=other)
        with pytest.raises(FileError, match="FLARE refuses: CSR hash does not match"):
            self.sign(papers, authority, request)
        hashed = edited(csr_sha256=hashlib.sha256(other).hexdigest())
        changed(request, tmp_path / "s.zip", request_json=hashed)
        with pytest.raises(FileError, match="FLARE refuses: CSR public key hash does not match"):
            self.sign(papers, authority, tmp_path / "s.zip")

    def test_a_request_whose_signature_is_not_its_keys(self, papers, authority, tmp_path):
        with zipfile.ZipFile(papers.asked.file) as members:
            csr = x509.load_pem_x509_csr(members.read("north.csr"))
        der = bytearray(csr.public_bytes(Encoding.DER))
        der[-1] ^= 1
        forged = x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)
        hashed = edited(csr_sha256=hashlib.sha256(forged).hexdigest())
        changes = {"north_csr": forged, "request_json": hashed}
        request = changed(papers.asked.file, tmp_path / "r.zip", **changes)
        with pytest.raises(FileError, match=r"FLARE refuses: .*CSR"):
            self.sign(papers, authority, request)

    @pytest.mark.parametrize(
        "said",
        [
            {"kind": "server", "cert_type": "server"},
            {"kind": "user", "cert_type": "lead"},
            {"cert_type": "project_admin"},
            {"org": "elsewhere"},
        ],
    )
    def test_only_silos_are_enrolled(self, papers, authority, tmp_path, said):
        request = changed(papers.asked.file, tmp_path / "r.zip", request_json=edited(**said))
        with pytest.raises(FileError, match="is no request of a silo"):
            self.sign(papers, authority, request)

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda content: b"",
            lambda content: content[: len(content) // 2],
            lambda content: content.replace(b"request.json", b"request.jsan"),
            lambda content: content[:60] + b"\xff" * 40 + content[100:],
        ],
    )
    def test_a_damaged_request(self, papers, authority, tmp_path, spoil):
        request = tmp_path / "r.zip"
        request.write_bytes(spoil(papers.asked.file.read_bytes()))
        with pytest.raises(FileError, match=r"is no request that .* made, or is damaged"):
            self.sign(papers, authority, request)

    def test_a_request_that_is_none(self, papers, authority, tmp_path):
        request = changed(papers.asked.file, tmp_path / "r.zip", request_json=b"[" * 100_000)
        with pytest.raises(FileError, match=r"is no request that .* made, or is damaged"):
            self.sign(papers, authority, request)
        with pytest.raises(FileError, match=r"there is no file .*absent\.zip"):
            self.sign(papers, authority, tmp_path / "absent.zip")
        (tmp_path / "large.zip").write_bytes(bytes(LARGEST + 1))
        with pytest.raises(FileError, match="too large to be a request"):
            self.sign(papers, authority, tmp_path / "large.zip")

    def test_an_authority_that_has_expired(self, papers, authority):
        key = key_of((authority / "rootCA.key").read_bytes())
        root = x509.load_pem_x509_certificate((authority / "rootCA.pem").read_bytes())
        old = reissued(root, key, root.subject).public_bytes(Encoding.PEM)
        (authority / "rootCA.pem").write_bytes(old)
        notes = json.loads((authority / "ca.json").read_text())
        (authority / "ca.json").write_text(json.dumps({"project": notes["project"]}))
        with pytest.raises(FileError, match=r"FLARE refuses: .*CA certificate expired"):
            self.sign(papers, authority, papers.asked.file)

    def test_a_folder_that_is_no_authority(self, papers, tmp_path):
        with pytest.raises(FileError, match=r"is no authority that signs requests: .*--by-request"):
            self.sign(papers, tmp_path / "absent", papers.asked.file)

    def test_a_second_certificate_is_given_on_purpose_only(self, papers, authority):
        signed = self.sign(papers, authority, papers.asked.file)
        assert signed.fingerprint == papers.root
        other = {"key": papers.other.fingerprint, "out": authority.parent / "again.zip"}
        with pytest.raises(SettingsError, match=r"has a certificate already, .*stays valid until"):
            sign_request(papers.other.file, authority, "north", **other)
        assert sign_request(papers.other.file, authority, "north", again=True, **other)


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
    return builder.sign(signer, hashes.SHA256())


def signed_anew(papers, path, change, **contents):
    """What the authority would have signed, had it wanted to: `change` of what it says."""
    key = key_of((papers.kits / "authority" / "rootCA.key").read_bytes())
    with zipfile.ZipFile(papers.signed.file) as members:
        said = json.loads(members.read("signed.json"))
    change(said)
    told = json.dumps(said).encode()
    changed(papers.signed.file, path, signed_json=told, **contents)
    buffer = io.BytesIO(path.read_bytes())
    with zipfile.ZipFile(buffer) as members:
        all_ = {name: members.read(name) for name in members.namelist()}
    all_["signed.json.sig"] = sign_content(told, key).encode()
    with zipfile.ZipFile(path, "w") as members:
        for name, content in all_.items():
            members.writestr(name, content)
    return path


class TestEnrolling:
    def refused(self, papers, folder, words, *, signed=None, request=None, root=None):
        out = folder / "site" / "kit"
        with pytest.raises(FileError, match=words):
            enrol_site(
                signed or papers.signed.file,
                request or papers.request,
                out,
                authority=root or papers.root,
            )
        assert not out.exists()
        assert not out.parent.exists() or not list(out.parent.iterdir())

    def test_another_root(self, papers, tmp_path):
        assert papers.strange.fingerprint != papers.root
        words = "FLARE refuses: Root CA SHA256 fingerprint does not match .*compare fingerprints"
        self.refused(papers, tmp_path, words, signed=papers.strange.file)

    def test_a_root_put_into_the_right_answer(self, papers, tmp_path):
        with zipfile.ZipFile(papers.strange.file) as members:
            root = members.read("rootCA.pem")
        signed = changed(papers.signed.file, tmp_path / "s.zip", rootCA_pem=root)
        self.refused(papers, tmp_path, "FLARE refuses: .*signature is invalid", signed=signed)

    def test_an_answer_changed_on_the_way(self, papers, tmp_path):
        server = {"host": "evil.example", "fed_learn_port": 8002, "admin_port": 8002}
        signed = changed(papers.signed.file, tmp_path / "s.zip", signed_json=edited(server=server))
        self.refused(papers, tmp_path, "FLARE refuses: .*signature is invalid", signed=signed)
        with zipfile.ZipFile(papers.strange.file) as members:
            other = members.read("north.crt")
        signed = changed(papers.signed.file, tmp_path / "t.zip", north_crt=other)
        self.refused(papers, tmp_path, "FLARE refuses: Hash mismatch for cert", signed=signed)

    def test_a_certificate_that_has_expired(self, papers, tmp_path):
        root = papers.kits / "authority"
        issuer = x509.load_pem_x509_certificate((root / "rootCA.pem").read_bytes())
        with zipfile.ZipFile(papers.signed.file) as members:
            certificate = x509.load_pem_x509_certificate(members.read("north.crt"))
        signer = key_of((root / "rootCA.key").read_bytes())
        old = reissued(certificate, signer, issuer.subject).public_bytes(Encoding.PEM)

        def change(said):
            said["hashes"]["certificate_sha256"] = hashlib.sha256(old).hexdigest()

        signed = signed_anew(papers, tmp_path / "s.zip", change, north_crt=old)
        self.refused(papers, tmp_path, "FLARE refuses: .*expired", signed=signed)

    def test_another_request_than_was_signed(self, papers, tmp_path):
        words = "FLARE refuses: .*does not match the signed zip request_id"
        self.refused(papers, tmp_path, words, request=papers.other.file.parent)

    def test_another_key_than_was_signed(self, papers, tmp_path):
        folder = shutil.copytree(papers.request, tmp_path / "request")
        other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "north.key").write_bytes(pem)
        words = "FLARE refuses: The local private key does not match the signed certificate"
        self.refused(papers, tmp_path, words, request=folder)

    def test_an_authority_that_wants_no_certificates(self, papers, tmp_path):
        def change(said):
            said["default_connection_security"] = "clear"

        signed = signed_anew(papers, tmp_path / "s.zip", change)
        words = "wants a connection with the security 'clear', where silomix needs 'mtls'"
        self.refused(papers, tmp_path, words, signed=signed)

    def test_files_that_are_none(self, papers, tmp_path):
        self.refused(papers, tmp_path, "is no folder of a request", request=tmp_path)
        self.refused(papers, tmp_path, "there is no file", signed=tmp_path / "absent.zip")
        (tmp_path / "s.zip").write_bytes(b"PK")
        self.refused(papers, tmp_path, "FLARE refuses: Not a valid", signed=tmp_path / "s.zip")


class TestCommands:
    def run(self, *words):
        return CliRunner().invoke(commands.flare_app, [str(word) for word in words])

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
        lines = [
            shlex.split(line)
            for line in re.findall(r"^\$ silomix flare (.*)$", section, re.MULTILINE)
        ]
        assert [line[0] for line in lines] == ["provision", "request", "sign", "enrol"]
        provisioning, requesting, signing, enrolling = lines
        told = self.done(*provisioning)
        assert told["kits"] == ["kits/server", "kits/admin"]
        asked = self.done(*requesting)
        shutil.copy(asked["request"], tmp_path)  # all that is sent
        signing[signing.index("SHA256:...")] = asked["fingerprint"]
        signed = self.done(*signing)
        assert signed["fingerprint"] == told["fingerprint"]
        enrolling[enrolling.index("SHA256:...")] = told["fingerprint"]
        server = "grpc://coordinator.example.org:8002"
        assert self.done(*enrolling) == {"kit": "north-kit", "silo": "north", "server": server}
        assert site_name(Path("north-kit")) == "north"

        again = self.run(*signing)
        assert again.exit_code == 4
        assert "give --force to replace" in again.output
        shown = self.run(*signing, "--force")
        assert f"Fingerprint of the authority: {told['fingerprint']}" in shown.output.splitlines()

    @pytest.mark.parametrize("command", ["request", "sign"])
    def test_a_silo_that_is_not_in_the_study(self, tmp_path, command):
        study = write_study(STUDY, tmp_path / "study.toml")
        words = [study, "--silo", "east", "--out", tmp_path / "out"]
        if command == "sign":
            words += [tmp_path / "r.zip", "--authority", tmp_path, "--fingerprint", "0" * 64]
        failed = self.run(command, *words)
        assert failed.exit_code == 4
        assert "the study has no silo 'east'" in failed.output


def test_the_roster_is_named():
    with pytest.raises(SettingsError, match="its roster is 'north', 'south': correct the name"):
        check_roster(STUDY, "east")


@pytest.mark.parametrize("before", ["", "SHA256:", "sha256 Fingerprint="])
def test_a_fingerprint_as_programs_spell_it(before):
    spelled = fingerprint("ab" * 32)
    assert spelled == "SHA256:" + ":".join(["AB"] * 32)
    assert fingerprint(before + ":".join(["ab"] * 32)) == spelled


class TestProvisioning:
    def test_a_silo_called_as_the_server(self, tmp_path):
        with pytest.raises(SettingsError, match="'localhost' has the name of the server's host"):
            provision(["localhost"], tmp_path / "kits")

    def test_a_host_that_is_no_name(self, tmp_path):
        with pytest.raises(SettingsError, match=r"FLARE cannot provision this federation: .*host"):
            provision(["north"], tmp_path / "kits", host="not a host", by_request=True)
        assert not list((tmp_path / "kits").iterdir())


class TestTool:
    def test_what_it_says_is_in_the_error(self, monkeypatch):
        monkeypatch.setattr(tool.sys, "executable", shutil.which("false") or "false")
        with pytest.raises(FileError, match="FLARE refuses: it does not say why; try again"):
            tool.run_tool("cert", "init", advice="try again")
