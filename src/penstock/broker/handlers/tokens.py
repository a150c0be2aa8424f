"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken.

Versions: 1 to 3 (renew, expire: 1 and 2). Version 3 has the owner beside the requester (KIP-373).

Behaviour: all four require `delegation.token.secret.key`, and a connection that is authenticated by
a password or a certificate. A token's owner and renewers may renew, expire and describe it. Others
need `create_tokens` on the owner to create a token for it, and `describe` on the token or
`describe_tokens` on its owner to see it.

Source: KIP-48, KIP-373; Kafka's `DelegationTokenControlManager`, `KafkaApis`.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import PenstockError
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import error_of
from penstock.control.delegation import TokenRows, change_tokens, tokens_of
from penstock.security import ANONYMOUS, Principal
from penstock.security.credentials import new_salt
from penstock.security.delegation import (
    DelegationToken,
    InvalidPrincipalType,
    TokenAuthorisationFailed,
    TokenExpired,
    TokenNotFound,
    TokenOwnerMismatch,
    TokenRequestNotAllowed,
    TokensDisabled,
    token_of,
)
from penstock.wire.kafka.framing import milliseconds

if TYPE_CHECKING:
    from penstock.base.system import Clock, Randomness
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.net.security_settings import SecuritySettings
    from penstock.control import ControlPlane

Entry = dict[str, Any]
USER: Final = "User"
OWNER_FROM: Final = 3
"""First version with owners and requesters."""
_NO_TOKEN: Final = {
    "issue_timestamp": -1,
    "expiry_timestamp": -1,
    "max_timestamp": -1,
    "token_id": "",
    "hmac": b"",
}


class DelegationTokens(Struct, frozen=True, kw_only=True):
    control: ControlPlane
    cluster: ClusterMetadata
    clock: Clock
    randomness: Randomness
    settings: SecuritySettings

    async def create_delegation_token(self, context: RequestContext, request: Any) -> Entry:
        owner = requester = context.connection.principal
        if context.version >= OWNER_FROM and request.owner_principal_name:
            owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
        try:
            token = await self._created(context, request, owner)
        except PenstockError as error:
            number, _ = error_of(error)
            return {**_NO_TOKEN, **_principals(owner, requester), "error_code": number}
        return self._entry(token)

    async def renew_delegation_token(self, context: RequestContext, request: Any) -> Entry:
        period_ms = milliseconds(request.renew_period)
        if period_ms < 0:
            period_ms = self.settings.delegation_token_expiry_time_ms
        return await self._changed(context, bytes(request.hmac), period_ms)

    async def expire_delegation_token(self, context: RequestContext, request: Any) -> Entry:
        period_ms = milliseconds(request.expiry_time_period)
        return await self._changed(context, bytes(request.hmac), period_ms)

    async def describe_delegation_token(self, context: RequestContext, request: Any) -> Entry:
        try:
            self._check(context)
        except PenstockError as error:
            return {"error_code": error_of(error)[0], "tokens": ()}
        await self.cluster.refresh()
        owners = None
        if request.owners is not None:
            owners = {
                Principal(owner.principal_type, owner.principal_name) for owner in request.owners
            }
        tokens = map(token_of, tokens_of(self.cluster.image).values())
        return {
            "tokens": [
                self._entry(token) for token in tokens if self._is_shown(context, token, owners)
            ]
        }

    def _check(self, context: RequestContext) -> None:
        """Raise TokensDisabled or TokenRequestNotAllowed."""
        connection = context.connection
        authentication = connection.authentication
        by_token = authentication is not None and authentication.by_token
        if connection.principal == ANONYMOUS or by_token:
            raise TokenRequestNotAllowed(
                "requests about delegation tokens need a connection that is authenticated by a"
                " password or a certificate"
            )
        if not self.settings.delegation_token_secret_key:
            raise TokensDisabled(
                "delegation tokens are disabled. Set delegation.token.secret.key on all brokers."
            )

    async def _created(
        self, context: RequestContext, request: Any, owner: Principal
    ) -> DelegationToken:
        self._check(context)
        requester = context.connection.principal
        if owner != requester and not context.rights.allows("create_tokens", "user", str(owner)):
            raise TokenAuthorisationFailed(f"{requester} may not create tokens of {owner}")
        renewers = [
            Principal(renewer.principal_type, renewer.principal_name)
            for renewer in request.renewers
        ]
        for principal in (owner, *renewers):
            if principal.kind != USER:
                raise InvalidPrincipalType(
                    f"principal type {principal.kind!r:.60} of a delegation token must be {USER}"
                )
        now_ms = self.clock.now_ms()
        settings = self.settings
        lifetime_ms = milliseconds(request.max_lifetime)
        if lifetime_ms <= 0:
            lifetime_ms = settings.delegation_token_max_lifetime_ms
        max_ms = now_ms + min(lifetime_ms, settings.delegation_token_max_lifetime_ms)
        token = DelegationToken(
            token_id=self.randomness.uuid().hex,
            owner=owner,
            requester=requester,
            renewers=tuple(renewers),
            issued_ms=now_ms,
            expires_ms=min(max_ms, now_ms + settings.delegation_token_expiry_time_ms),
            max_ms=max_ms,
        )
        salt = new_salt(self.randomness)
        row = await asyncio.get_running_loop().run_in_executor(
            None, token.row, settings.delegation_token_secret_key, salt
        )
        await change_tokens(self.control, now_ms, lambda known: {token.token_id: row})
        await self.cluster.refresh()
        return token

    async def _changed(self, context: RequestContext, code: bytes, period_ms: int) -> Entry:
        """Set a token's expiry to `period_ms` from now; expire it now if the period is negative."""
        now_ms = self.clock.now_ms()
        expiry_ms = -1

        def change(known: TokenRows) -> TokenRows:
            nonlocal expiry_ms
            token = self._found(known, code)
            if not token.belongs_to(context.connection.principal):
                raise TokenOwnerMismatch(
                    f"{context.connection.principal} neither owns nor renews the token"
                    f" {token.token_id}"
                )
            if token.is_expired(now_ms):
                raise TokenExpired(f"token {token.token_id} has expired")
            if period_ms < 0:
                expiry_ms = now_ms
                return {token.token_id: {}}
            expiry_ms = min(token.max_ms, now_ms + period_ms)
            changed = replace(token, expires_ms=expiry_ms)
            return {token.token_id: changed.changed(known[token.token_id])}

        try:
            self._check(context)
            await change_tokens(self.control, now_ms, change)
        except PenstockError as error:
            return {"error_code": error_of(error)[0], "expiry_timestamp": -1}
        await self.cluster.refresh()
        return {"expiry_timestamp": expiry_ms}

    def _found(self, known: TokenRows, code: bytes) -> DelegationToken:
        key = self.settings.delegation_token_secret_key
        for row in known.values():
            token = token_of(row)
            if hmac.compare_digest(token.hmac(key), code):
                return token
        raise TokenNotFound("no delegation token has this HMAC")

    def _is_shown(
        self, context: RequestContext, token: DelegationToken, owners: set[Principal] | None
    ) -> bool:
        if token.is_expired(self.clock.now_ms()):
            return False
        if owners is not None and not any(map(token.belongs_to, owners)):
            return False
        rights = context.rights
        return (
            token.belongs_to(context.connection.principal)
            or rights.allows("describe", "delegation_token", token.token_id)
            or rights.allows("describe_tokens", "user", str(token.owner))
        )

    def _entry(self, token: DelegationToken) -> Entry:
        return {
            **_principals(token.owner, token.requester),
            "issue_timestamp": token.issued_ms,
            "expiry_timestamp": token.expires_ms,
            "max_timestamp": token.max_ms,
            "token_id": token.token_id,
            "hmac": token.hmac(self.settings.delegation_token_secret_key),
            "renewers": [
                {"principal_type": renewer.kind, "principal_name": renewer.name}
                for renewer in token.renewers
            ],
        }


def _principals(owner: Principal, requester: Principal) -> Entry:
    return {
        "principal_type": owner.kind,
        "principal_name": owner.name,
        "token_requester_principal_type": requester.kind,
        "token_requester_principal_name": requester.name,
    }
