from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator

import pytest

from ottla import Admin, ApiError
from ottla.client.admin import ScramMechanism
from ottla.client.errors import NetworkError, SettingError, TlsFailed
from ottla.client.security import plain, scram
from ottla.model.errors import ErrorCode
from tests.client.conftest import SETTINGS
from tests.client.waiting import eventually
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.wire import free_port


def test_plain_is_three_words():
    assert next(plain("me", "pass")) == b"\0me\0pass"


def test_scram_follows_the_rfc():
    """The example of RFC 7677."""
    exchange = scram("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert next(exchange) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = exchange.send(challenge)
    assert proof.endswith(b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    with pytest.raises(StopIteration):
        exchange.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("challenge", "final"),
    [
        (b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", None),  # not an answer to our nonce
        (b"r=nonce1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=100", None),  # too weak
        (b"nonsense", None),
        (b"r=nonce1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="),  # does not know it
    ],
)
def test_server_that_cheats_is_refused(challenge, final):
    exchange = scram("SCRAM-SHA-256", "user", "pencil", "nonce")
    next(exchange)

    def talk():
        exchange.send(challenge)
        exchange.send(final)

    with pytest.raises(ApiError) as caught:
        talk()
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_certificate_that_cannot_be_read_is_told(tmp_path):
    async def make():
        Admin(security_protocol="SSL", ssl_cafile=str(tmp_path / "absent.pem"))

    with pytest.raises(SettingError, match="cannot be read"):
        asyncio.run(make())


@pytest.fixture(scope="module")
def secured(tmp_path_factory) -> Iterator[tuple[str, str, str, str]]:
    """An Apache Kafka with a plain, a SASL and a TLS listener: their addresses, and the certificate to trust."""
    folder = tmp_path_factory.mktemp("secured")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    (folder / "store.pem").write_text(key.read_text() + certificate.read_text())
    peer = KafkaPeer(folder, settings=SETTINGS)
    sasl, tls = free_port(), free_port()
    login = "org.apache.kafka.common.security"
    extra = {
        "listeners": f"PLAINTEXT://{peer.bootstrap},SASL_PLAINTEXT://127.0.0.1:{sasl},SSL://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{peer.controller_ports[0]}",
        "advertised.listeners": f"PLAINTEXT://{peer.bootstrap},SASL_PLAINTEXT://127.0.0.1:{sasl},SSL://127.0.0.1:{tls}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login}.plain.PlainLoginModule required user_alice="secret";',
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
        "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "store.pem"),
    }
    with (folder / "node-0" / "server.properties").open("a") as file:
        file.writelines(f"{name}={value}\n" for name, value in extra.items())
    with peer:
        yield peer.bootstrap, f"127.0.0.1:{sasl}", f"127.0.0.1:{tls}", str(certificate)


async def ask(bootstrap: str, **settings) -> bool:
    async with Admin(bootstrap_servers=bootstrap, **settings) as admin:
        return bool((await admin.describe_cluster()).brokers)


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_log_in_with_a_password(secured, mechanism):
    plain_address, address, _, _ = secured
    if mechanism != "PLAIN":
        async with Admin(bootstrap_servers=plain_address) as admin:
            await admin.set_scram_password("alice", "secret", ScramMechanism[mechanism.replace("-", "_")])
    settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, "sasl_username": "alice"}
    assert await eventually(lambda: ask(address, sasl_password="secret", **settings))
    with pytest.raises(ApiError) as caught:
        await ask(address, sasl_password="wrong", **settings)
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.kafka
async def test_tls_is_spoken_where_it_is_expected_and_told_where_it_is_not(secured):
    plain_address, _, address, certificate = secured
    assert await ask(address, security_protocol="SSL", ssl_cafile=certificate)
    with pytest.raises(TlsFailed, match="security_protocol"):
        await ask(address)
    with pytest.raises(TlsFailed):  # nobody vouches for that certificate
        await ask(address, security_protocol="SSL")
    with pytest.raises(NetworkError):
        await ask(plain_address, security_protocol="SSL", ssl_cafile=certificate, socket_connection_setup_timeout_ms=2000)
