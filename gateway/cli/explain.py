"""`fencing-gateway explain`: which rule an object falls under, and which fence key it gets."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import click

from gateway.cli.control_client import ControlClient
from gateway.cli.control_command import configured_client, control_options
from gateway.cli.settings import REFUSED, config_options, fail, settings_of
from gateway.cli.show import print_facts, print_json, printable, tell
from gateway.cli.show_fence import floor_facts, hindrances
from gateway.client.errors import Json, Refused, Unreachable
from gateway.config.settings import RuleSettings, Settings
from gateway.config.source import FILE_VARIABLE
from gateway.core.errors import Malformed
from gateway.core.keys import DEFAULT_RULE, Mapping, Mode, TokenLimits, key_of_object
from gateway.core.names import filed_name
from gateway.s3.errors import S3Error
from gateway.s3.request import Headers, parse_head
from gateway.server.assemble import ruleset

SCHEME = "s3://"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the configuration says of one object."""

    bucket: str
    object_key: str
    """As the fence knows it; not as asked for where the store files keys as paths."""
    number: int | None
    """Of the rule, from 1; None where none matches."""
    rule: RuleSettings | None
    mapping: Mapping

    @property
    def key(self) -> str:
        return self.mapping.key or key_of_object(self.bucket, self.object_key)


class NoKey(Exception):
    """The rule gives the object no valid key: every write of it is refused. The message names the rule."""


@click.command()
@click.argument("address", metavar="s3://BUCKET/KEY")
@config_options
@control_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    address: str,
    config: Path | None,
    assignments: tuple[str, ...],
    url: str | None,
    ca_bundle: Path | None,
    as_json: bool,
) -> None:
    """Which rule of the configuration an object falls under, and which fence key it gets.

    Where a gateway answers, also what it knows of that key."""
    bucket, object_key = _split(address)
    settings = settings_of(config, assignments, as_json=as_json)
    if config is None and not os.environ.get(FILE_VARIABLE):
        tell(f"no configuration is named (--config, {FILE_VARIABLE}): a gateway that has one may have a rule for this")
    try:
        found = explanation(settings, bucket, object_key)
    except NoKey as error:
        if as_json:
            print_json({"bucket": bucket, "object": object_key, "key": None, "error": str(error)})
            sys.exit(REFUSED)
        fail(printable(str(error)), REFUSED)
    fence, told = _ask(configured_client(url, ca_bundle, settings), found)
    if as_json:
        print_json(_document(found, fence))
        return
    print_facts(_facts(found, asked=object_key))
    if fence is None:
        click.echo(f"\nThe gateway was not asked for the floor: {printable(told[0])}")
        return
    click.echo()
    print_facts([*floor_facts(fence), ("Unsettled sends", str(len(fence["unsettled"])))])
    for one in told:
        click.echo(f"\n{one}")


def explanation(settings: Settings, bucket: str, object_key: str) -> Explanation:
    """The first rule that matches, as the gateway takes it. Raises `NoKey`."""
    if settings.upstream.url != "aws":  # all others are believed to file keys as paths until they are seen not to
        object_key = filed_name(object_key) or object_key
    for number, rule in enumerate(settings.rule, start=1):
        alone = ruleset(settings.model_copy(update={"rule": (rule,)}))
        try:
            mapping = alone.map(bucket, object_key)
        except Malformed as error:
            raise NoKey(f"rule {number} ({rule.match}) refuses every write of this object: {error.message}") from None
        if mapping.rule is not DEFAULT_RULE:
            return Explanation(bucket, object_key, number, rule, mapping)
    return Explanation(bucket, object_key, None, None, Mapping(DEFAULT_RULE, None))


def _split(address: str) -> tuple[str, str]:
    """Bucket and key, plain as the AWS CLI takes them; an exit with status 2 where there is no such object."""
    bucket, _, key = address.removeprefix(SCHEME).partition("/")
    if not address.startswith(SCHEME) or not bucket or not key:
        fail(f"an object is named s3://BUCKET/KEY, not {printable(address)!r}")
    try:
        parse_head("PUT", f"/{quote(bucket, safe='')}/{quote(key)}", Headers([]))
    except (S3Error, UnicodeEncodeError) as error:
        fail(f"{printable(address)} names no object: {error}")
    return bucket, key


def _ask(client: ControlClient | None, found: Explanation) -> tuple[Json | None, list[str]]:
    """What the gateway knows of the key, and what it refuses whatever that says; or why it does not say."""
    if client is None:
        return None, ["the configuration names no port to reach it at (say --url)"]
    try:
        with client:
            return client.fence(found.key), hindrances(client, found.bucket)
    except (Refused, Unreachable) as error:
        return None, [str(error)]


def _document(found: Explanation, fence: Json | None) -> Json:
    rule = found.mapping.rule
    return {
        "bucket": found.bucket,
        "object": found.object_key,
        "rule": found.number,
        "match": found.rule.match if found.rule else None,
        "mode": rule.mode.value,
        "without_token": rule.without_token.value,
        "rekey": rule.rekey,
        "max_token_jump": rule.limits.jump,
        "max_first_token": rule.limits.first_token,
        "key": found.key,
        "key_from": "rule" if found.mapping.key else "object",
        "fence": fence,
    }


def _limits(limits: TokenLimits) -> list[tuple[str, str]]:
    told = (("Token jump", "above the floor", limits.jump), ("First token", "", limits.first_token))
    return [(name, f"at most {limit} {of}".rstrip()) for name, of, limit in told if limit is not None]


def _facts(found: Explanation, asked: str) -> list[tuple[str, str]]:
    rule = found.mapping.rule
    facts = [("Object", f"{SCHEME}{found.bucket}/{found.object_key}")]
    if asked != found.object_key:
        facts.append(("Asked for", f"{asked}; to a store that files keys as paths that is the object above"))
    number = f"{found.number}: match {found.rule.match}" if found.rule else "no rule matches; the defaults hold"
    key = found.key
    if rule.mode is Mode.OFF:
        key = "none: mode off is no fence"
    elif not found.mapping.key:
        key += ", unless a write's X-Fencing-Key or credentials named another: a HEAD shows it (X-Fencing-Object-Key)"
    return [
        *facts,
        ("Rule", number),
        ("Mode", rule.mode.value),
        ("Without token", rule.without_token.value),
        ("Rekey", "yes" if rule.rekey else "no"),
        *_limits(rule.limits),
        ("Fence key", key),
    ]
