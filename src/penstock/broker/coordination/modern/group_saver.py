"""What is saved of a group, and which answers wait for that.

Changes are numbered. One save of a group is under way at a time and takes all changes that there
are; an answer waits until the changes that were made before it are durable, whoever made them, so
that nobody is told what a crash could take back. While saves fail, members are heard and told to
come again, and nothing of the group changes.

Source: Kafka's `CoordinatorRuntime`, whose answers wait for what was written to its log before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Generic, TypeVar

from penstock.broker.coordination.core import Save
from penstock.broker.coordination.group_events import COORDINATOR_NOT_AVAILABLE, Accepted
from penstock.broker.coordination.modern.group import ModernGroup, ModernMember, PendingResponse
from penstock.broker.coordination.turn import Turn

SAVE_RETRY_MS: Final = 1_000
"""Pause before a failed save is tried again."""

_REMOVAL: Final = -1

G = TypeVar("G", bound=ModernGroup[Any])
Rows = Mapping[str, bytes]


class GroupSaver(Generic[G]):
    """Saves groups of one kind, and gives the answers that rest on that."""

    def __init__(
        self,
        turn: Turn,
        groups: dict[str, G],
        *,
        rows: Callable[[G], Rows],
        gone: Callable[[G], None],
    ) -> None:
        """`rows` are those of a group; `gone` is called when one has been removed."""
        self._turn = turn
        self._groups = groups
        self._rows = rows
        self._gone = gone

    def answer(self, group: G, token: int, response: Any) -> None:
        """Answer once all that has changed so far is durable."""
        if group.saved == group.version:
            self._turn.reply(token, response)
        else:
            group.pending_responses.append(PendingResponse(group.version, token, response))

    def save(self, group: G) -> None:
        """See to it that what has changed is saved."""
        if group.saving is not None or group.failing:
            return
        if group.removal_tokens is not None:
            group.saving = _REMOVAL
            self._turn.effects.append(Save(key=group.group_id, rows={}, deletes_offsets=True))
        elif group.saved < group.version:
            self._start(group)

    def _start(self, group: G) -> None:
        group.saving = group.version
        self._turn.effects.append(Save(key=group.group_id, rows=self._rows(group)))

    def remove(self, group: G, tokens: list[int]) -> None:
        """Remove a group with its offsets, once no other save is under way."""
        if group.removal_tokens is None:
            group.removal_tokens = []
        group.removal_tokens += tokens
        self.save(group)

    def saved(self, group: G) -> None:
        """The save under way is durable; what has changed since is saved by the caller."""
        done, group.saving, group.failing = group.saving, None, ""
        if done == _REMOVAL:
            self._gone(group)
            for token in group.removal_tokens or ():
                self._turn.reply(token, Accepted())
            return
        group.saved = group.saved if done is None else done
        owed, group.pending_responses = group.pending_responses, []
        for one in owed:
            if one.version <= group.saved:
                self._turn.reply(one.token, one.response)
            else:
                group.pending_responses.append(one)

    def failed(self, group: G, reason: str) -> None:
        """The save under way is not durable, or not known to be."""
        done, group.saving = group.saving, None
        if done == _REMOVAL:
            tokens, group.removal_tokens = group.removal_tokens or [], None
        else:
            tokens, group.pending_responses = [one.token for one in group.pending_responses], []
            group.failing = reason or "the group could not be saved"
            group.save_timer.fire = partial(self._again, group)
            self._turn.timers.start(group.save_timer, self._turn.now_ms + SAVE_RETRY_MS)
        for token in tokens:
            self._turn.refuse(token, COORDINATOR_NOT_AVAILABLE, reason)

    def _again(self, group: G) -> None:
        if self._groups.get(group.group_id) is group and group.saving is None:
            self._start(group)


def member_row(member: ModernMember, parts: Mapping[str, Callable[[], bytes]]) -> bytes:
    """A member's row: its parts under their names, each encoded again only if it has changed."""
    known = member.rows
    row = known.get("")
    if row is None:
        for name, encode in parts.items():
            if name not in known:
                known[name] = encode()
        row = known[""] = b"{%s}" % b",".join(
            [b'"%s":%s' % (name.encode(), known[name]) for name in parts]
        )
    return row


def outdate(member: ModernMember, part: str) -> None:
    """A part of a member's row is not what it was."""
    member.rows.pop(part, None)
    member.rows.pop("", None)
