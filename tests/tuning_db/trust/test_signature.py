"""Signatures: what they cover, which keys are taken, and what is refused."""

import base64
import random
import shutil
import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from databases import CONV, alter, fill, renew_digests, rows

from tuning_db import DatabaseError, Reader, Store, open_reader, shipped_databases
from tuning_db.share import json_export
from tuning_db.share.merge import merge_into
from tuning_db.share.snapshot import read
from tuning_db.trust import signature
from tuning_db.trust.signature import TRUSTED, generate, private_key, public_key, public_keys

LAUNCHED = "SELECT id FROM measurement WHERE status = 'ok'"


def sign(path, key):
    """Sign a database; returns the public key."""
    with Store.create(path) as store, Reader(path) as plain:
        public, value = signature.sign(plain.content(), private_key(key))
        store.put_signature(public, value)
    return public


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "key.pem"
    generate(path)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory, key):
    path = tmp_path_factory.mktemp("signed") / "signed.db"
    with Store.create(path) as store:
        fill(store, 1)
        fill(store, 2, device="other")
    return path, sign(path, key)


@pytest.fixture
def signed(made, tmp_path):
    """A signed database and the key."""
    path, public = made
    shutil.copy(path, tmp_path / path.name)
    return tmp_path / path.name, public


def content(path):
    with Reader(path) as plain:
        return plain.content()


def test_a_signature_is_ed25519_over_the_documented_text(signed):
    path, public = signed
    [(stored, value)] = rows(path, "SELECT key, value FROM signature")
    assert stored == public
    Ed25519PublicKey.from_public_bytes(base64.b64decode(public)).verify(base64.b64decode(value), content(path).text)
    with open_reader(path, [public]) as database:
        assert database.devices()


def test_keys_are_files_their_text_or_base64(signed, key, tmp_path, monkeypatch):
    path, public = signed
    pem = key.with_name("key.pem.pub")
    for given in (pem, str(pem), pem.read_text(), public):
        assert public_key(given) == public
        open_reader(path, [given]).__exit__()
    generate(tmp_path / "other.pem")
    others = tmp_path / "other.pem.pub"
    open_reader(path, [others, pem]).__exit__()
    monkeypatch.setenv(TRUSTED, f"{others}:{public}")
    open_reader(path).__exit__()
    monkeypatch.setenv(TRUSTED, str(others))
    open_reader(path, [pem]).__exit__()
    with pytest.raises(DatabaseError, match="no valid signature by a key that you trust"):
        open_reader(path)


def test_shipped_databases_that_no_trusted_key_signed_are_left_out(key, monkeypatch):
    assert shipped_databases()
    monkeypatch.setenv(TRUSTED, str(key.with_name("key.pem.pub")))
    assert not shipped_databases()


@pytest.mark.parametrize("given", ["key.pub", Path("key.pub"), None, 3])
def test_keys_are_given_as_a_list(given):
    with pytest.raises(DatabaseError, match=r"^trusted_keys is .*: give a list of keys, such as \['key\.pub'\]$"):
        public_keys(given)
    if not isinstance(given, str | Path):
        with pytest.raises(DatabaseError, match="is no public key: give a PEM file"):
            public_keys([given])


def test_a_new_key_is_private_and_replaces_nothing(key):
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(DatabaseError, match=r"key\.pem exists"):
        generate(key)


@pytest.mark.process
def test_openssls_keys_are_taken(signed, tmp_path):
    path, public = signed
    key = tmp_path / "openssl.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    halved = subprocess.run(["openssl", "pkey", "-in", key, "-pubout"], check=True, capture_output=True, text=True)
    second = sign(path, key)
    assert second == public_key(halved.stdout) != public
    for given in (public, second):  # several people may sign
        open_reader(path, [given]).__exit__()


@pytest.mark.parametrize(
    "text", ["", "words", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "absent.pem"]
)
def test_what_is_no_key_is_told_in_a_sentence(text, signed, tmp_path):
    file = tmp_path / "key.txt"
    file.write_text(text)
    with pytest.raises(DatabaseError, match="Ed25519"):
        private_key(file)
    with pytest.raises(DatabaseError, match=r"cannot read the key|Ed25519"):
        public_key(text or file)


def test_a_key_of_another_kind_is_refused(tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "ec.pem").write_bytes(private)
    with pytest.raises(DatabaseError, match="another kind"):
        private_key(tmp_path / "ec.pem")
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(DatabaseError, match="another kind"):
        public_key(public.decode())


def test_the_text_depends_on_the_content_alone(signed, tmp_path):
    path, _ = signed
    with Store.open(path) as store:
        json_export.export(store, tmp_path / "a.json")
    with Store.create(tmp_path / "imported.db") as store:
        json_export.import_(tmp_path / "a.json", store)
    assert content(tmp_path / "imported.db").text == content(path).text
    shuffled = tmp_path / "shuffled.db"
    with Store.open(path) as store:
        snapshot = read(store)
    rng = random.Random()
    for table in ("device", "problem", "library", "kernel", "measurement"):
        rng.shuffle(snapshot[table])
    with Store.create(shuffled) as store:
        merge_into(store, snapshot)
    assert rows(shuffled, "SELECT id, config FROM kernel") != rows(path, "SELECT id, config FROM kernel")
    assert content(shuffled).text == content(path).text
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA page_size = 8192")
        connection.execute("VACUUM")
    assert content(shuffled).text == content(path).text


CHANGES = {
    "a device's target": "UPDATE device SET target = 'sm_80' WHERE id = 1",
    "a device's rate": "UPDATE device SET flops_per_us = 2 * flops_per_us WHERE id = 1",
    "a problem": "UPDATE problem SET text = replace(text, 'n=', 'n=1') WHERE id = 1",
    "a binary's digest": f"UPDATE library SET digest = '{'0' * 64}' WHERE id = 1",
    "a kernel's layouts": """UPDATE kernel SET weight_layouts = '{"weight": "krsc"}' WHERE id = 1""",
    "a kernel's symbol": "UPDATE kernel SET symbol = 't' WHERE id = 1",
    "the names of launch values": """UPDATE kernel SET launch_names = '["a", "z"]' WHERE id = 1""",
    "a launch": f"""UPDATE measurement SET launch = '{{"z": 7, "a": 7}}' WHERE id = ({LAUNCHED} LIMIT 1)""",
    "a time": f"UPDATE measurement SET median_us = 0.001 WHERE id = ({LAUNCHED} ORDER BY id DESC LIMIT 1)",
    "a status": "UPDATE measurement SET status = 'ok', median_us = 0.1 WHERE id = (SELECT id FROM measurement "
    "WHERE status <> 'ok' LIMIT 1)",
    "a measurement less": f"DELETE FROM measurement WHERE id = ({LAUNCHED} LIMIT 1)",
    "a plan's choices": "UPDATE plan SET choices = replace(choices, '1.5', '1.25') WHERE id = 1",
    "a plan's network": "UPDATE plan SET network = 'net n=9' WHERE id = 1",
    "plans in another order": "UPDATE plan SET id = 100 WHERE id = 1",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_what_running_reads_is_noticed(signed, change):
    path, public = signed
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(change).rowcount == 1
        connection.commit()
    renew_digests(path)  # by somebody who can write digests, and not signatures
    with pytest.raises(DatabaseError, match="it was changed after it was signed"):
        open_reader(path, [public])
    open_reader(path).__exit__()


@pytest.mark.parametrize("column", ["weight_layouts", "symbol"])
def test_a_row_that_is_changed_behind_the_signature_is_refused_when_it_is_read(signed, column):
    path, public = signed
    alter(path, f"UPDATE kernel SET {column} = '{{}}x'")
    damaged = pytest.raises(DatabaseError, match=r"signed\.db: row 1 of table 'kernel' is damaged")
    with open_reader(path, [public]) as database, damaged:
        database.kernel(1)


def test_a_file_that_is_changed_while_it_is_open_does_not_get_in(signed):
    path, public = signed
    with open_reader(path, [public]) as database:
        alter(path, "UPDATE kernel SET symbol = 'evil'")
        renew_digests(path)
        with pytest.raises(DatabaseError, match="damaged"):
            database.kernel(1)


def test_what_running_does_not_read_may_change(signed):
    path, public = signed
    alter(path, "UPDATE kernel SET source = source || 'x'", "UPDATE measurement SET samples_us = '[]', recorded = NULL")
    open_reader(path, [public]).__exit__()


def test_a_signature_that_is_copied_to_another_database_does_not_hold(signed, tmp_path):
    path, public = signed
    other = tmp_path / "other.db"
    with Store.create(other) as store:
        fill(store, 3)
        store.put_signature(*rows(path, "SELECT key, value FROM signature")[0])
    with pytest.raises(DatabaseError, match="changed after it was signed"):
        open_reader(other, [public])
    for value in ("", "AAAA", "no base64"):
        with Store.create(other) as store:
            store.put_signature(public, value)
        with pytest.raises(DatabaseError, match="no valid signature"):
            open_reader(other, [public])


def test_more_tuning_ends_the_signature_and_signing_again_renews_it(signed, key):
    path, public = signed
    with Store.create(path) as store:
        store.put_problem(CONV.format(n=99))
    with pytest.raises(DatabaseError, match="no valid signature"):
        open_reader(path, [public])
    assert sign(path, key) == public
    open_reader(path, [public]).__exit__()
    assert rows(path, "SELECT count(*) FROM signature") == [(1,)]


def test_an_unsigned_file_and_a_server_are_refused_where_keys_are_given(tmp_path):
    public = generate(tmp_path / "key")
    with Store.create(tmp_path / "a.db") as store:
        fill(store, 1)
    with pytest.raises(DatabaseError, match=r"a\.db has no valid signature .*nobody signed it.*`autotune db sign"):
        open_reader(tmp_path / "a.db", [public])
    with pytest.raises(DatabaseError, match="pack it into a file by `autotune db pack` and sign that"):
        open_reader("postgresql+psycopg://user@host/name", [public])


def test_a_key_is_a_secret_of_its_owner(signed):
    """Someone who knows the public key alone cannot sign for it."""
    path, public = signed
    with Reader(path) as plain:
        _, value = signature.sign(plain.content(), Ed25519PrivateKey.generate())
    with Store.create(path) as store:
        store.put_signature(public, value)
    with pytest.raises(DatabaseError, match="no valid signature"):
        open_reader(path, [public])


def test_signed_plans_that_changed_places_are_refused(key, tmp_path):
    path = tmp_path / "plans.db"
    with Store.create(path) as store:
        fill(store, 1)
        device = store.devices()[0]
        for us in (100.0, 50.0):
            store.put_plan(device_id=device.id, network="net", median_us=us, spread_us=0.0, choices=[], details={})
    public = sign(path, key)
    with Reader(path, [public]) as signed:
        assert signed.plan(signed.device(device.name), "net").median_us == 50
    alter(path, "UPDATE plan SET median_us = 150 - median_us")
    with Reader(path, [public]) as signed, pytest.raises(DatabaseError, match="damaged or was changed"):
        signed.plan(signed.device(device.name), "net")
