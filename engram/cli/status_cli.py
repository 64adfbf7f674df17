"""`engram status`: of a federation, of a run, or of a site's node."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from engram.cli.console import out
from engram.cli.options import Json
from engram.data.file_models import readable
from engram.guards.client_epsilon import spent_by_client
from engram.link.addresses import CONTROL
from engram.link.server.invitations import invitations
from engram.runs.record import RunRecord
from engram.server.status import Member, costs, members, participation
from engram.settings.errors import one_line

__all__ = ["app"]

app = typer.Typer()


@app.command()
def status(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="A federation's `server`, a client's folder, or that of a run."
        ),
    ],
    control: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help=f"Where users reach the SuperLink; by default {CONTROL}."
        ),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Of a client: its node's --state.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of a client: its node's --policy.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show who is in a federation or took part in a run, or what a node does."""
    if (target / "config.json").is_file():
        _of_run(target, as_json)
    elif (target / "node.toml").is_file():
        _of_site(target, state, policy, as_json)
    else:
        _of_federation(target, control, as_json)


def _of_run(target: Path, as_json: bool) -> None:
    with readable(target):
        record = RunRecord.open(target)
        rows, spent = record.rows(), spent_by_client(record)
        shares, cost = participation(rows), costs(rows)
    if as_json:
        found = {"clients": [share._asdict() for share in shares], "costs": cost}
        print(json.dumps(found | ({"epsilon": spent} if spent else {})))
        return
    done = rows[-1]["round"] if rows else 0
    table = Table(title=f"{target}: {done} rounds", title_justify="left")
    more = ["epsilon"] if spent else []
    for heading in ("client", "asked", "took part", *more, "did not, because"):
        table.add_column(heading, justify="left" if "did" in heading else "right")
    for share in shares:
        why = ", ".join(f"{reason}: {times}" for reason, times in share.reasons.items())
        counts = [str(share.asked), str(share.took_part)]
        counts += [f"{spent.get(share.client, 0.0):.4g}"] if spent else []
        table.add_row(one_line(share.name), *counts, one_line(why))
    out.print(table)
    for kind, total in cost.items():
        unit = f"{total / 2**20:.2f} MiB" if "bytes" in kind else f"{total:.1f} s"
        out.print(f"{kind:<20}{unit:>12}")


def _of_federation(target: Path, control: str | None, as_json: bool) -> None:
    found = members(target, control=control)
    ends = invitations(target).items()
    found += [Member(f"client-{number}", 0, "invited", f"until {end}") for number, end in ends]
    if as_json:
        print(json.dumps([member._asdict() for member in found]))
        return
    table = Table(title=str(target), title_justify="left")
    for heading in ("client", "node", "status", "since (UTC)"):
        table.add_column(heading)
    for member in found:
        table.add_row(*map(one_line, (member.name or "?", str(member.node_id or ""), *member[2:])))
    out.print(table if found else f"{target}: the SuperLink knows no node")


def _of_site(target: Path, state: Path | None, policy: Path | None, as_json: bool) -> None:
    from engram.client.round_log import in_words
    from engram.client.training_folders import listed
    from engram.sites.policy import USUAL
    from engram.sites.status import site_status

    found = site_status(target, state, policy)
    if as_json:
        print(json.dumps(found.to_json()))
        return
    c, usual = found.credentials, USUAL.model_dump(mode="json", by_alias=True)
    rules = [f"{key}={value}" for key, value in found.rules().items() if value != usual[key]]
    safe = "insecure" if c.insecure else "by certificate and key"
    lines = {
        "client": f"{c.partition_id} of {c.num_partitions}, of {c.federation} at "
        f"{c.superlink}, {safe}",
        "node": "runs" if found.runs else f"does not run: engram node {target}",
        "policy": f"{found.file or 'none'}: {one_line(', '.join(rules) or 'the defaults')}",
        "today": f"{found.rounds} of at most {found.policy.rounds_a_day} rounds of training",
        **({"budget": "; ".join(found.budget)} if found.budget else {}),
        **({"registry": f"{found.registry}, by which it knows others"} if found.registry else {}),
        "waiting": ", ".join(found.waiting) or "no training, for approval",
        "log": found.log.fault or "whole; the last lines:",
    }
    for name, text in lines.items():
        out.print(f"{name:<8}  {text}", soft_wrap=True)
    for line in filter(None, found.log.lines):
        out.print(f"{line['time']} {in_words(line)}", soft_wrap=True)
    if found.memories:
        out.print(listed(found.memories))
