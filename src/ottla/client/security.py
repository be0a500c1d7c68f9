"""TLS contexts and SASL log-ins, made from settings.

The exchange is a list of client messages computed from server messages; `authenticator` sends them in SaslAuthenticate
requests (KIP-152). SCRAM follows RFC 5802 and checks the server's signature, so a server that does not know the password is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections.abc import Generator
from typing import TYPE_CHECKING

from ottla.client.errors import SettingError
from ottla.client.settings import CommonSettings
from ottla.host import World
from ottla.model.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from ottla.client.connection import Authenticate, Connection

NONCE_BYTES = 24
MIN_SCRAM_ITERATIONS = 4096
Exchange = Generator[bytes, bytes, None]


def tls_context(settings: CommonSettings) -> ssl.SSLContext | None:
    if settings["security_protocol"] not in ("SSL", "SASL_SSL"):
        return None
    if settings["ssl_context"] is not None:
        return settings["ssl_context"]
    try:
        context = ssl.create_default_context(cafile=settings["ssl_cafile"])
        if settings["ssl_certfile"]:
            context.load_cert_chain(settings["ssl_certfile"], settings["ssl_keyfile"])
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"ssl_cafile, ssl_certfile or ssl_keyfile cannot be read: {error}") from error
    context.check_hostname = settings["ssl_check_hostname"]
    return context


def authenticator(settings: CommonSettings, world: World) -> Authenticate | None:
    """What a new connection must do before anything else, or None without SASL."""
    if settings["security_protocol"] not in ("SASL_PLAINTEXT", "SASL_SSL"):
        return None
    username, password = settings["sasl_username"], settings["sasl_password"]
    if username is None or password is None:
        raise SettingError("security_protocol with SASL needs sasl_username and sasl_password")
    mechanism = settings["sasl_mechanism"]

    async def authenticate(connection: Connection) -> None:
        nonce = base64.b64encode(world.random.bytes(NONCE_BYTES)).decode()
        exchange = plain(username, password) if mechanism == "PLAIN" else scram(mechanism, username, password, nonce)
        await log_in(connection, mechanism, exchange)

    return authenticate


async def log_in(connection: Connection, mechanism: str, exchange: Exchange) -> None:
    from ottla.protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

    reply = await connection.request(SaslHandshakeRequest(mechanism=mechanism), version=1)
    if reply.error_code:
        known = ", ".join(reply.mechanisms) or "none"
        raise ApiError(ErrorCode(reply.error_code), f"{connection.address} does not offer {mechanism}; it offers {known}")
    message = next(exchange)
    while True:
        reply = await connection.request(SaslAuthenticateRequest(auth_bytes=message))
        if reply.error_code:
            raise ApiError(ErrorCode(reply.error_code), reply.error_message or "the broker refused the user name or password")
        try:
            message = exchange.send(bytes(reply.auth_bytes))
        except StopIteration:
            return


def plain(username: str, password: str) -> Exchange:
    yield b"\0".join((b"", username.encode(), password.encode()))


def scram(mechanism: str, username: str, password: str, nonce: str) -> Exchange:
    digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    name = username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    challenge = yield b"n,," + first.encode()
    fields = _fields(challenge)
    iterations = int(fields["i"])
    if not fields["r"].startswith(nonce) or iterations < MIN_SCRAM_ITERATIONS:
        raise ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, "the broker's SCRAM challenge is not an answer to ours, or too weak")
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(fields["s"]), iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    last = f"c=biws,r={fields['r']}"
    signed = f"{first},{challenge.decode()},{last}".encode()
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    final = yield f"{last},p={base64.b64encode(proof).decode()}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    if not hmac.compare_digest(base64.b64decode(_fields(final).get("v", "")), expected):
        raise ApiError(
            ErrorCode.SASL_AUTHENTICATION_FAILED, "the broker does not know this user's password: it may be an impostor"
        )


def _fields(message: bytes) -> dict[str, str]:
    try:
        return dict(part.split("=", 1) for part in message.decode().split(","))
    except (UnicodeDecodeError, ValueError):
        raise ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"a SCRAM message that cannot be read: {message[:40]!r}") from None
