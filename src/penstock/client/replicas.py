"""Administrative calls for replicas: broker states, reassignment, removal of brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, Final, NamedTuple

from penstock.base.errors import InvalidError, PenstockError
from penstock.base.settings import INT_MAX
from penstock.client.admin import AdminCalls
from penstock.client.arguments import text, whole
from penstock.client.errors import TimedOut, broker_error
from penstock.client.protocol import Node, TopicAndPartition

LOOK_SECONDS: Final = 0.5
SHORT_CALLS: Final[dict[str, Any]] = {
    "api_timeout_ms": 1_000, "connect_timeout_ms": 1_000, "request_timeout_ms": 2_500
}  # fmt: skip
"""Time limits of a client that asks brokers for their state, in milliseconds.

A broker needs 2 s to check its components. A call to several brokers must end within 5 s, even if
some do not respond.
"""
EXCLUDED_BROKERS: Final = "placement.excluded.brokers"
ROLES: Final = "broker.roles"
UNAVAILABLE: Final = "broker.unavailable"
ADMIN: Final = "admin.listener"
ADMIN_PROTOCOL: Final = "admin.security.protocol"
PERSISTENCE: Final = "persistence"
_BROKER: Final = 4


class Reassignment(NamedTuple):
    """Reassignment of a partition in progress: current replicas, and those to add and to remove."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class BrokerState(NamedTuple):
    """State that a registered broker reports, or the error if it did not respond."""

    node: Node
    roles: tuple[str, ...] | None = None
    unavailable: str = ""
    """Required components that the broker cannot use now, each with its cause; empty for none."""
    admin: str = ""
    """Bound address of the broker's admin interface; empty if it has none."""
    admin_encrypted: bool = False
    error: PenstockError | None = None


def outage(states: Mapping[int, BrokerState]) -> str:
    """Return the problems of brokers that cannot serve, in one line; empty if all can."""
    return "; ".join(
        f"broker {broker_id}: {state.unavailable or state.error}"
        for broker_id, state in states.items()
        if state.unavailable or not isinstance(state.error, InvalidError | None)
    )


class ReplicaCalls(AdminCalls):
    _request_timeout_ms: int

    def excluded_brokers(self) -> frozenset[int]:
        found = {config.name: config.value or "" for config in self.describe_configs("broker", "")}
        return frozenset(map(int, filter(None, found.get(EXCLUDED_BROKERS, "").split(","))))

    def broker_states(self) -> dict[int, BrokerState]:
        """Return the state of each registered broker; all are asked in parallel."""
        nodes = self._session.retrying(self._session.nodes)
        states: dict[int, BrokerState] = {}

        def ask(node: Node) -> None:
            states[node.node_id] = self._state_of(node)

        threads = [Thread(target=ask, args=(node,), daemon=True) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {node.node_id: states[node.node_id] for node in nodes}

    def _state_of(self, node: Node) -> BrokerState:
        try:
            found = self._own_configs((node.host, node.port), node.node_id)
        except PenstockError as error:
            return BrokerState(node, error=error)
        return BrokerState(
            node,
            tuple(found[ROLES].split(",")),
            unavailable=found.get(UNAVAILABLE, ""),
            admin=found[ADMIN],
            admin_encrypted=found[ADMIN_PROTOCOL] == "SSL",
        )

    def _own_configs(self, address: tuple[str, int], broker_id: int) -> dict[str, str]:
        """Return the roles, state and admin address of the broker at an address.

        It fails if a broker with another id responds there.
        """
        resource = {
            "resource_type": _BROKER,
            "resource_name": str(broker_id),
            "configuration_keys": (ROLES, UNAVAILABLE, ADMIN, ADMIN_PROTOCOL),
        }
        body = {
            "resources": [resource],
            "include_synonyms": False,
            "include_documentation": False,
        }
        (result,) = self._session.call_address(address, "DescribeConfigs", body).results
        if int(result.error_code):
            subject = f"broker {broker_id}"
            raise broker_error(int(result.error_code), subject, result.error_message)
        return {str(entry.name): entry.value or "" for entry in result.configs}

    def is_at_bootstrap(self, node: Node) -> bool:
        """Whether a bootstrap address reaches this broker.

        Its advertised address is not tried. If only that address fails, the address is advertised
        wrongly.
        """
        for address in self._session.bootstrap:
            if address == (node.host, node.port):
                continue
            with suppress(PenstockError):
                self._own_configs(address, node.node_id)
                return True
        return False

    def unplaceable_brokers(self) -> frozenset[int]:
        """Return the brokers that get no new replicas: excluded ones, and ones without the role
        that stores data.
        """
        without = [
            broker_id
            for broker_id, state in self.broker_states().items()
            if state.roles is not None and PERSISTENCE not in state.roles
        ]
        return self.excluded_brokers().union(without)

    def exclude_broker(self, broker_id: int, excluded: bool = True) -> None:
        """Exclude a broker from new replicas, or include it again; the setting is cluster-wide."""
        changes = {EXCLUDED_BROKERS: str(whole("broker_id", broker_id, 0, INT_MAX))}
        if excluded:
            self.alter_configs("broker", "", append=changes)
        elif broker_id in self.excluded_brokers():
            self.alter_configs("broker", "", subtract=changes)

    def partition_sizes(self) -> dict[TopicAndPartition, int]:
        """Return the bytes of each partition on its leader's disk; without partitions that lack a
        leader.
        """
        sizes: dict[TopicAndPartition, int] = {}

        def once() -> None:
            for node in self._session.nodes():
                answer = self._session.call_node(node.node_id, "DescribeLogDirs", {"topics": None})
                for directory in answer.results:
                    for topic in directory.topics:
                        for partition in topic.partitions:
                            key = str(topic.name), int(partition.partition_index)
                            sizes[key] = int(partition.partition_size)

        self._session.retrying(once)
        return sizes

    def reassign(
        self, target: Mapping[TopicAndPartition, Sequence[int] | None]
    ) -> dict[TopicAndPartition, PenstockError]:
        """Request new replicas for partitions; the first broker of a list is the preferred leader.

        None in place of a list cancels the partition's reassignment. Brokers reassign in the
        background. Returns the error of each rejected partition.
        """
        topics: dict[str, list[dict[str, Any]]] = {}
        for (name, partition), replicas in target.items():
            row = {
                "partition_index": whole("partition", partition, 0, INT_MAX),
                "replicas": None if replicas is None else tuple(replicas),
            }
            topics.setdefault(text("topic", name), []).append(row)
        body = {
            "timeout": self._request_timeout_ms,
            "allow_replication_factor_change": True,
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }

        def once() -> dict[TopicAndPartition, PenstockError]:
            answer = self._session.call_controller("AlterPartitionReassignments", body)
            _check(answer, "reassignment")
            return {
                (str(topic.name), int(partition.partition_index)): broker_error(
                    int(partition.error_code),
                    f"{topic.name}-{partition.partition_index}",
                    partition.error_message,
                )
                for topic in answer.responses
                for partition in topic.partitions
                if int(partition.error_code)
            }

        return self._session.retrying(once)

    def reassignments(self) -> dict[TopicAndPartition, Reassignment]:
        body = {"timeout": self._request_timeout_ms, "topics": None}

        def once() -> dict[TopicAndPartition, Reassignment]:
            answer = self._session.call_any("ListPartitionReassignments", body)
            _check(answer, "reassignments")
            return {
                (str(topic.name), int(partition.partition_index)): Reassignment(
                    *(
                        tuple(int(broker) for broker in brokers)
                        for brokers in (
                            partition.replicas,
                            partition.adding_replicas,
                            partition.removing_replicas,
                        )
                    )
                )
                for topic in answer.topics
                for partition in topic.partitions
            }

        return self._session.retrying(once)

    def await_reassigned(
        self,
        partitions: Iterable[TopicAndPartition],
        seconds: float,
        progress: Callable[[int, int], None],
    ) -> None:
        """Wait until the partitions are reassigned.

        `progress` is called with the number of finished partitions and the total.

        Raises:
            TimedOut: some are unfinished after `seconds`; the brokers continue.
        """
        requested = set(partitions)
        until_ms, before = self._session.now_ms() + seconds * 1000, -1
        while left := len(requested & self.reassignments().keys()):
            if left != before:
                progress(len(requested) - left, len(requested))
                before = left
            if self._session.now_ms() > until_ms:
                raise TimedOut(
                    f"{left} of {len(requested)} partitions have not moved within"
                    f" {seconds:g} s; the brokers continue to move them"
                )
            self._session.pause(LOOK_SECONDS)

    def elect_leaders(
        self, topic: str, partitions: Iterable[int], *, unclean: bool = False
    ) -> dict[int, PenstockError | None]:
        body = {
            "election_type": int(unclean),
            "topic_partitions": [{"topic": text("topic", topic), "partitions": tuple(partitions)}],
            "timeout": self._request_timeout_ms,
        }

        def once() -> dict[int, PenstockError | None]:
            answer = self._session.call_controller("ElectLeaders", body)
            _check(answer, "election")
            return {
                int(partition.partition_id): broker_error(
                    int(partition.error_code),
                    f"{topic}-{partition.partition_id}",
                    partition.error_message,
                )
                if int(partition.error_code)
                else None
                for found in answer.replica_election_results
                for partition in found.partition_result
            }

        return self._session.retrying(once)

    def unregister_broker(self, broker_id: int) -> None:
        """Remove a broker permanently.

        Raises:
            BrokerRefused: the broker is running, has replicas, or was never registered.
        """
        body = {"broker_id": whole("broker_id", broker_id, 0, INT_MAX)}

        def once() -> None:
            answer = self._session.call_controller("UnregisterBroker", body)
            _check(answer, f"broker {broker_id}")

        self._session.retrying(once)


def _check(answer: Any, subject: str) -> None:
    code = int(getattr(answer, "error_code", 0))
    if code:
        raise broker_error(code, subject, getattr(answer, "error_message", None))
