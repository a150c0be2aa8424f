"""How clients of the suite say who they are, and what they may do.

With `PENSTOCK_COMPAT_SECURITY=sasl_ssl` brokers of the suite have a listener SASL_SSL and deny
what no ACL allows. Each client is a user of its own name. What it may do follows from the calls
that a scenario makes of its driver and from the topics, groups and transactional ids that it names
in them (`CALLS`): just that is allowed, literally. The suite itself is a super user.

`Security` is how one client connects; drivers turn it into the options of their client. Where the
suite is not secured, it is nothing at all, and nothing is granted.
"""

from __future__ import annotations

import functools
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.security.access import allow

from penstock.client import Client
from penstock.client.security import CONFIG_VARIABLE
from penstock.security.acls import CLUSTER, AclBinding
from penstock.security.credentials import HASHES, SALT_BYTES, derive
from penstock.security.data.secret_files import write_private
from penstock.security.development_ca import authority_in, common_name

SASL_SSL: Final = "SASL_SSL"
HOSTS: Final = ("localhost", "127.0.0.1")
ADMIN: Final = "admin"
SCENARIO: Final = "scenario"
"""Who a scenario's own clients are, that no driver stands before."""
DIRECTORY: Final = "PENSTOCK_COMPAT_SECURITY_DIRECTORY"
"""Where programs of the suite find what it has made."""
ITERATIONS: Final = 4096

Need = tuple[str, str, str]
"""An operation, a type of resource, and its name; one that ends in `*` is a prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a client connects. Files are PEM; `keystore` has the key and the certificate."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    truststore: str = ""
    keystore: str = ""
    token: str = ""
    """A file with a token, for OAUTHBEARER."""
    delegation: bool = False
    """Whether user and password are a delegation token; only Java's clients log in by one."""

    @property
    def plain(self) -> bool:
        """Whether there is nothing to set."""
        return self.protocol == "PLAINTEXT"

    def options(self) -> dict[str, str]:
        """librdkafka's, which our own client, KafkaJS's driver and franz-go's take too."""
        if self.plain:
            return {}
        keys = {"ssl.certificate.location": self.keystore, "ssl.key.location": self.keystore}
        login = {"sasl.username": self.user, "sasl.password": self.password}
        return {
            "security.protocol": self.protocol,
            "ssl.ca.location": self.truststore,
            **(keys if self.keystore else {}),
            **({"sasl.mechanism": self.mechanism} if self.mechanism else {}),
            **(login if self.password else {}),
        }

    def properties(self) -> dict[str, str]:
        """Those of Kafka's Java client."""
        if self.plain:
            return {}
        package = "org.apache.kafka.common.security"
        module = "plain.PlainLoginModule" if self.mechanism == "PLAIN" else "scram.ScramLoginModule"
        login = {"username": self.user, "password": self.password}
        if self.delegation:
            login["tokenauth"] = "true"
        more = {}
        if self.token:
            module, login = "oauthbearer.OAuthBearerLoginModule", {}
            handler = f"{package}.oauthbearer.OAuthBearerLoginCallbackHandler"
            more["sasl.login.callback.handler.class"] = handler
            more["sasl.oauthbearer.token.endpoint.url"] = Path(self.token).as_uri()
        if self.mechanism:
            words = "".join(f' {name}="{value}"' for name, value in login.items())
            more["sasl.mechanism"] = self.mechanism
            more["sasl.jaas.config"] = f"{package}.{module} required{words};"
        if self.keystore:
            more |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.keystore}
        return {
            "security.protocol": self.protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.truststore,
            **more,
        }

    def properties_file(self) -> str:
        """The path of a file with `properties`, for Java programs."""
        text = "".join(f"{name}={value}\n" for name, value in self.properties().items())
        directory = Path(self.truststore).parent if self.truststore else Path(tempfile.gettempdir())
        path = directory / f"{self.user or 'client'}-{self.mechanism or self.protocol}.properties"
        write_private(path, text.encode())
        return str(path)

    def environment(self) -> dict[str, str]:
        """That of a program of ours: this process's, and where its clients find all this."""
        named = {} if self.plain else {CONFIG_VARIABLE: self.properties_file()}
        return {**os.environ, **named}

    def context(self) -> ssl.SSLContext | None:
        """That of Python's clients."""
        if not self.protocol.endswith("SSL"):
            return None
        made = ssl.create_default_context(cafile=self.truststore)
        if self.keystore:
            made.load_cert_chain(self.keystore)
        return made

    def python(self) -> dict[str, Any]:
        """The keywords of kafka-python and aiokafka, without a token, which each gets otherwise."""
        if self.plain:
            return {}
        login = {"sasl_plain_username": self.user, "sasl_plain_password": self.password}
        return {
            "security_protocol": self.protocol,
            "ssl_context": self.context(),
            **({"sasl_mechanism": self.mechanism} if self.mechanism else {}),
            **(login if self.password else {}),
        }


class Realm:
    """An authority, and users that every broker of a run knows, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._now_ms = int(time.time() * 1000)
        self.authority = authority_in(directory, self._now_ms)
        self.truststore = str(directory / "ca.pem")

    def keystore(self, name: str, hosts: Sequence[str] = HOSTS) -> str:
        """The path of a new keystore, in place of a former one; without hosts it is a client's."""
        path = self.directory / f"{name}.keystore.pem"
        write_private(path, self.authority.issue(common_name(name), self._now_ms, hosts=hosts))
        return str(path)

    def add_users(self, *names: str) -> None:
        """Write the file of users, whose passwords are known by their names."""
        lines = [f"{name}:{_credential(name, mechanism)}" for name in names for mechanism in HASHES]
        write_private(self.directory / "users", "\n".join(lines).encode())

    def broker_settings(self, protocol: str = SASL_SSL) -> dict[str, str]:
        """Settings of a broker that knows these users, and denies what no ACL allows."""
        return {
            "ssl.keystore.location": str(self.directory / "broker.keystore.pem"),
            "ssl.truststore.location": self.truststore,
            "ssl.client.auth": "required" if protocol == "SSL" else "none",
            "sasl.enabled.mechanisms": ",".join(("PLAIN", *HASHES)),
            "sasl.users.file": str(self.directory / "users"),
            "authorizer.class.name": "acls",
            "super.users": f"User:{ADMIN};User:CN={ADMIN}",
            "admin.loopback.trusted": "true",
        }

    def user(self, name: str, mechanism: str = "SCRAM-SHA-512") -> Security:
        """How one of the users connects."""
        return Security(
            protocol=SASL_SSL,
            mechanism=mechanism,
            user=name,
            password=password(name),
            truststore=self.truststore,
        )

    def certificate(self, name: str) -> Security:
        """How the holder of a certificate connects, which is made for it."""
        store = self.keystore(name, ())
        return Security(protocol="SSL", user=name, truststore=self.truststore, keystore=store)


def password(name: str) -> str:
    """A user's."""
    return f"of {name}, with = and ;"


def _credential(name: str, mechanism: str) -> str:
    salt = name.encode().ljust(SALT_BYTES, b"-")[:SALT_BYTES]
    return derive(mechanism, password(name), salt=salt, iterations=ITERATIONS).text()


USERS: Final = (
    ADMIN, SCENARIO, "confluent-kafka", "aiokafka", "kafka-python", "kcat", "kafkajs", "java",
    "franz-go", "penstock", "spark", "streams",
)  # fmt: skip


@functools.cache
def realm() -> Realm | None:
    """The realm of this run, where it is secured; a program of the suite has that of the suite."""
    if os.environ.get("PENSTOCK_COMPAT_SECURITY", "") != "sasl_ssl":
        return None
    if found := os.environ.get(DIRECTORY):
        return Realm(Path(found))
    _kept.append(made := tempfile.TemporaryDirectory(prefix="penstock-realm-"))
    os.environ[DIRECTORY] = made.name
    one = Realm(Path(made.name))
    one.keystore("broker")
    one.add_users(*USERS)
    return one


_kept: Final[list[tempfile.TemporaryDirectory[str]]] = []
"""The directory of this process's realm, which ends with the process."""


def protocol() -> str:
    """That of brokers in this run."""
    return "PLAINTEXT" if realm() is None else SASL_SSL


def security_of(name: str) -> Security:
    """How a user connects in this run."""
    found = realm()
    return Security() if found is None else found.user(name)


def harness(bootstrap: str, admin: Security | None = None) -> dict[str, Any]:
    """librdkafka's options for what the suite does itself."""
    return {"bootstrap.servers": bootstrap, **(admin or security_of(ADMIN)).options()}


def administrator(bootstrap: str) -> Client:
    """A client of ours for what the suite does itself; the caller closes it."""
    return Client(bootstrap, security=security_of(ADMIN).options())


def ours(bootstrap: str, *needs: Need) -> Client:
    """One that may do this; the caller closes it."""
    grant(bootstrap, "penstock", needs)
    return Client(bootstrap, security=security_of("penstock").options())


def scenario(bootstrap: str, *needs: Need) -> dict[str, Any]:
    """librdkafka's options for a scenario's own client, which may do this."""
    grant(bootstrap, SCENARIO, needs)
    return {"bootstrap.servers": bootstrap, **security_of(SCENARIO).options()}


def allowed(bootstrap: str, *needs: Need) -> dict[str, Any]:
    """The same for kafka-python, but for the servers."""
    grant(bootstrap, SCENARIO, needs)
    return security_of(SCENARIO).python()


def grant(bootstrap: str, user: str, needs: Sequence[Need], admin: Security | None = None) -> None:
    """Allow a user what it needs; it is in force on every broker that the address names."""
    bindings = [_binding(user, need) for need in needs]
    one = admin or security_of(ADMIN)
    if one.plain or not bindings:
        return
    options = one.options()
    with Client(bootstrap, security=options) as client:
        client.create_acls(bindings)
    for address in bootstrap.split(",")[1:] and bootstrap.split(","):
        _await_acls(address, options, bindings)


def _await_acls(address: str, options: Mapping[str, str], wanted: Sequence[AclBinding]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            with Client(address, security=options) as client:
                if set(wanted) <= set(client.list_acls()):
                    return
        except Exception:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _binding(user: str, need: Need) -> AclBinding:
    operation, kind, name = need
    if name.endswith("*") and name != "*":
        return allow(operation, kind, name.removesuffix("*"), user, pattern_type="prefixed")
    return allow(operation, kind, name, user)


def write(topic: str) -> Need:
    return "write", "topic", topic


def read(topic: str, group: str = "") -> tuple[Need, ...]:
    """What a consumer needs, of a group if it is in one."""
    return (("read", "topic", topic), *((("read", "group", group),) if group else ()))


def transactions(name: str) -> Need:
    return "write", "transactional_id", name


NAMED: Final = "t-*"
"""What the names that scenarios are given begin with."""

_On = tuple[str, str, int | str]
CALLS: Final[Mapping[str, tuple[_On, ...]]] = {
    "produce": (("write", "topic", 0),),
    "consume": (("read", "topic", 0),),
    "join": (("read", "group", 0), ("read", "topic", 1)),
    "commit": (("read", "group", 0), ("read", "topic", 1)),
    "committed": (("describe", "group", 0), ("describe", "topic", 1)),
    "offsets_at": (("describe", "topic", 0),),
    "bounds": (("describe", "topic", 0),),
    "tiers": (("describe", "topic", 0),),
    "create_topic": (("create", "topic", 0), ("describe", "topic", 0)),
    "delete_topic": (("delete", "topic", 0),),
    "topics": (("describe", "topic", NAMED),),
    "create_partitions": (("alter", "topic", 0),),
    "configs": (("describe_configs", "topic", 0),),
    "alter_config": (("alter_configs", "topic", 0),),
    "delete_records": (("delete", "topic", 0),),
    "groups": (("describe", "group", f"g-{NAMED}"),),
    "describe_group": (("describe", "group", 0),),
    "delete_group": (("delete", "group", 0),),
    "log_dirs": (("describe", "cluster", CLUSTER),),
    "config_topics": (("describe_configs", "cluster", CLUSTER),),
    "transactional": (("write", "transactional_id", 0),),
}
"""What a driver's calls need: operation, type, and the argument that has the name, or the name."""
IN_TRANSACTIONS: Final[Mapping[str, tuple[_On, ...]]] = {
    "send": (("write", "topic", 0),),
    "send_offsets": (("read", "group", 0), ("read", "topic", 1)),
}


class Allowed:
    """What one client was allowed of one cluster, before each of its calls."""

    def __init__(self, bootstrap: str, user: str, always: Sequence[Need]) -> None:
        self._bootstrap = bootstrap
        self._user = user
        self._always = always
        self._granted: set[Need] = set()

    def watch(self, thing: Any, calls: Mapping[str, tuple[_On, ...]] = CALLS) -> None:
        """Allow, before a call of a driver or of its producer of transactions, what it needs."""
        for name, needs in calls.items():
            if hasattr(thing, name):
                setattr(thing, name, partial(self._call, getattr(thing, name), needs))

    def _call(
        self, call: Callable[..., Any], on: tuple[_On, ...], *arguments: Any, **options: Any
    ) -> Any:
        needs = {
            (operation, kind, arguments[name] if isinstance(name, int) else name)
            for operation, kind, name in on
        }
        needs.update(self._always)
        if new := sorted(needs - self._granted):
            grant(self._bootstrap, self._user, new)
            self._granted |= needs
        result = call(*arguments, **options)
        if on == CALLS["transactional"]:
            self.watch(result, IN_TRANSACTIONS)
        return result
