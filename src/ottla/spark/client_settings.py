"""`kafka.*` options as settings of our clients: text to values, and the names that Java's clients have for security to ours.

A program that was written for Spark's Kafka connector names a log-in as Java does (`kafka.sasl.jaas.config`, a truststore). What can
be read without Java is; what cannot is refused by name, because a setting of security must not be dropped silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args

from ottla.client.settings import AdminSettings, ConsumerSettings, ProducerSettings, table
from ottla.model.errors import OttlaError
from ottla.spark import java_settings


class OptionError(OttlaError):
    """An option that is unknown, missing or impossible; the sentence names it."""


_KINDS: tuple[type, ...] = (AdminSettings, ConsumerSettings, ProducerSettings)
_STORES = {"ssl_truststore_location": "ssl_cafile", "ssl_keystore_location": "ssl_certfile"}
_AS_TEXT = {"ssl_truststore_certificates", "ssl_keystore_certificate_chain", "ssl_keystore_key"}
_LOG_IN = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


@cache
def _known() -> frozenset[str]:
    return java_settings.NAMES.union(name.replace("_", ".") for kind in _KINDS for name in table(kind))


def check_name(given: str, name: str) -> None:
    """`name` is `given` without `kafka.`, in small letters. Raises OptionError for what is no setting of a client, Java's or ours:
    a misspelt one would be dropped, and its default be used, without a word."""
    known = _known()
    if name in known or name.startswith("config.providers."):
        return
    near = get_close_matches(name, known, 1, 0.6)
    hint = f"did you mean kafka.{near[0]}?" if near else "no client of Kafka has such a setting"
    raise OptionError(f"unknown option {given}; {hint}")


def converted(client: Mapping[str, str]) -> dict[str, Any]:
    """`client` has names in snake case. A setting that no client of ours has is dropped, as it is Java's own. Raises OptionError."""
    known = {name: row for kind in _KINDS for name, row in table(kind).items()}
    return {name: _value(text, known[name][0]) for name, text in _translated(client).items() if name in known}


def of_kind(kind: type, client: Mapping[str, Any]) -> dict[str, Any]:
    """Those that this kind of client takes."""
    known = table(kind)
    return {name: value for name, value in client.items() if name in known}


def _value(text: str, kind: Any) -> Any:
    if str in (get_args(kind) or (kind,)):
        return text  # a password may be all digits
    return json.loads(text) if re.fullmatch(r"-?\d+(\.\d+)?|true|false", text) else text


def _translated(client: Mapping[str, str]) -> dict[str, str]:
    out = dict(client)
    if (text := out.pop("sasl_jaas_config", None)) is not None:
        found = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _LOG_IN.findall(text)}
        if set(found) != {"username", "password"}:
            raise OptionError(
                'option kafka.sasl.jaas.config must give username="…" and password="…": of the log-ins PLAIN and SCRAM are spoken'
            )
        out |= {f"sasl_{name}": value for name, value in found.items()}
    for name in _AS_TEXT & out.keys():
        java = name.replace("_", ".")
        raise OptionError(f"option kafka.{java} is not taken as text: give a file, with kafka.ssl.{java.split('.')[1]}.location")
    for store, ours in _STORES.items():
        kind = out.pop(store.replace("location", "type"), "JKS")
        if (path := out.pop(store, None)) is None:
            continue
        if kind.upper() != "PEM":
            java = store.replace("_", ".")
            raise OptionError(
                f"option kafka.{java} is a Java keystore ({kind}), which only Java reads: export it as PEM, and give "
                f"kafka.{java.replace('location', 'type')}=PEM or kafka.{ours.replace('_', '.')}"
            )
        out[ours] = path
    if out.pop("ssl_endpoint_identification_algorithm", "https") == "":
        out["ssl_check_hostname"] = "false"
    return out
