"""Commands by which a site looks after its node: approvals, policy, log and ledger."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from engram.cli import work
from engram.cli.console import table_of
from engram.cli.options import JsonInstead, Site, State, argument, flag, option
from engram.cli.options import Policy as PolicyFile
from engram.link.console import console
from engram.link.credentials import read_node
from engram.settings.errors import Refused, RunStopped, say
from engram.sites.approvals import APPROVALS, Answer, Request, answer, given, waiting
from engram.sites.audit import AUDIT, Audit
from engram.sites.ledger import LEDGER, OTHERS, Ledger
from engram.sites.policy import Policy, in_force, keep_policy, kept_file

app = typer.Typer()

_NUMBERS: Final = ("run", "round", "rows", "noise", "epsilon")
_COLUMNS: Final = ("time (UTC)", "run", "method", "round", "answer", "rows", "noise", "epsilon")
_TRAINED: Final = {"train": "trained", "evaluate": "scored"}
_OF: Final = {"train": "training", "evaluate": "scores", "query.secure": "stages of secure sums"}


@app.command()
def approve(
    folder: Site,
    request: Annotated[
        str | None,
        argument(
            "[REQUEST]",
            "The digest of its terms, or to refuse all of a training, its name or that of "
            "its run; default: list them.",
        ),
    ] = None,
    refuse: Annotated[bool, flag("--refuse", "Refuse it, even if it was approved before.")] = False,
    state: State = None,
) -> None:
    """Approve or refuse a training that waits for its site's answer.

    Trainings wait where the site's policy has `approval = true`.
    """
    where = state_of(folder, state) / APPROVALS
    if request is None:
        if refuse:
            raise Refused("--refuse wants the digest of a request, or the name of a training")
        waits, who = waiting(where), asked_by(folder)
        for one in waits:
            say(*described(one, given(where, one).beyond, who))
        command = f"engram approve {shlex.quote(str(folder))} REQUEST"
        say(f"next: {command}, or with --refuse" if waits else "no training waits for approval")
        return
    chosen: Answer = "refused" if refuse else "approved"
    asks = "the run goes on within seconds, if it still waits" if not refuse else "it is told so"
    for one in answer(where, request, chosen):
        about = {"run": one.run, "training": one.training, "method": one.method}
        Audit(where.parent / AUDIT).append({"kind": chosen, **about}, trained=False)
        say(f"{one.terms}: {chosen} ({one.method}, {one.rounds} rounds); {asks}")


def described(request: Request, beyond: str, who: str) -> list[str]:
    """Returns lines about a request: its answers, settings, privacy and sender."""
    settings = " ".join(f"{key}={value}" for key, value in request.settings.items())
    answers = ", ".join(f"{count} of {_OF[kind]}" for kind, count in request.answers.items())
    if answers:
        answers += f"; as many again, of at most {request.every} rounds for each restart"
    since = f"since {request.asked[:16].replace('T', ' ')} UTC"
    return [
        f"{request.terms} waits {f'again: {beyond}' if beyond else since}",
        f"  training  {request.training}, run {request.run}: {request.method}, "
        f"{request.rounds} rounds",
        f"  answers   {answers or 'this one'}",
        f"  settings  {settings or 'none'}; all others have their defaults",
        f"  plug-ins  {', '.join(request.plugins) or 'none'}",
        f"  privacy   {request.privacy or 'none'}",
        f"  asked by  {who}",
    ]


def asked_by(folder: Path) -> str:
    """Describes the sender of runs, as far as a node can tell.

    Raises:
        Refused: The client's folder is not in order.
    """
    credentials = read_node(folder)
    return (
        f"the server at {credentials.superlink}, by its certificate; which person there, "
        "nothing proves"
    )


@app.command()
def policy(
    folder: Site,
    accept: Annotated[
        bool, flag("--accept", "Put the rules of its file in force, or their lack.")
    ] = False,
    state: State = None,
    file: Annotated[
        Path | None, option("FILE", "Default: the one that the node keeps.", "--policy")
    ] = None,
) -> None:
    """Show a site's rules in force, and accept those that wait for its answer."""
    where = state_of(folder, state)
    path = file or kept_file(where) or folder
    rules, waits = (keep_policy(path, where, accept=True), []) if accept else in_force(path, where)
    given = rules.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    told = ", ".join(f"{key}={value}" for key, value in given.items()) or "the defaults"
    if accept:
        Audit(where / AUDIT).append({"kind": "policy", "why": told}, trained=False)
    say(f"in force: {told}", f"digest: {rules.digest}")
    if waits:
        command = f"engram policy {shlex.quote(str(folder))} --accept"
        raise RunStopped(f"{'; '.join(waits)}: {command} puts them in force")


@app.command()
def log(
    folder: Site,
    state: State = None,
    as_json: Annotated[bool, flag("--json", "Print lines of JSON instead.")] = False,
) -> None:
    """Show a node's work, round by round, and check that its log is whole."""
    found = Audit(state_of(folder, state) / AUDIT).read()
    for line in found.lines:
        if as_json:
            print(json.dumps(line))
        elif line:
            say(f"{line['time']} {work.in_words(line)}")
    if found.fault:
        raise RunStopped(found.fault)
    if not as_json:
        say(f"{len(found.lines)} lines, none changed; the last one's hash is {found.last}")


@app.command()
def ledger(
    folder: Site,
    accept: Annotated[
        bool, flag("--accept", "Begin a damaged ledger anew, with what is known.")
    ] = False,
    others: Annotated[
        bool, flag("--others", "The next data are of other people: they get an account.")
    ] = False,
    state: State = None,
    policy: PolicyFile = None,
    as_json: JsonInstead = False,
) -> None:
    """Show the privacy budget that a node's answers have spent of its site's.

    The budget is `epsilon`, with `delta`, in the site's policy.
    """
    where = state_of(folder, state)
    rules, _ = in_force(policy or folder, where)
    book = Ledger(where / LEDGER, rules.epsilon, rules.delta)
    if accept and others:
        raise Refused("--accept and --others must be given one after the other, got both")
    if accept:
        _accept_ledger(book)
    elif others:
        book.declare_others()
        say("the next data that this node has not served yet get an account of their own")
    else:
        _show_ledger(book, folder, rules, as_json=as_json)


def _accept_ledger(book: Ledger) -> None:
    aside = book.accept()
    if aside is None:
        say("the ledger is whole, and stays as it is")
        return
    why = f"it was damaged, and its site has accepted what is known of it: see {aside.name}"
    Audit(book.folder.parent / AUDIT).append({"kind": "ledger", "why": why}, trained=False)
    was = f"damaged ledger is kept as {aside}" if aside.suffix != ".jsonl" else "ledger was gone"
    say(f"the {was}; a new one has what is known of it:")
    for text in book.in_words(book.read()):
        say(text)


def _show_ledger(book: Ledger, folder: Path, rules: Policy, *, as_json: bool) -> None:
    books = book.read()
    if as_json:
        spent = {str(account): epsilon for account, epsilon in book.spent(books).items()}
        found = {"epsilon": rules.epsilon, "delta": rules.delta, "accounts": spent}
        print(json.dumps(found | {"lines": books.lines, "fault": books.fault}))
    else:
        out = console()
        if books.lines:
            cells = map(_cells, filter(None, books.lines))
            out.print(table_of(_COLUMNS, cells, right=_NUMBERS))
        for text in book.in_words(books):
            out.print(text, soft_wrap=True)
    if books.fault:
        raise RunStopped(books.remedy(folder))


def _cells(line: Mapping[str, Any]) -> list[str]:
    kind = str(line.get("kind"))
    answer = f"{_TRAINED.get(kind, kind)} {line.get('clients', '')}".strip()
    if kind == OTHERS:
        answer = "the next new data are of others"
    time = str(line.get("time"))[:16].replace("T", " ")
    known = [line.get(key) for key in ("rows", "noise-multiplier", "epsilon")]
    return [
        time,
        *(str(line.get(key, "")) for key in ("run", "method", "round")),
        answer,
        *("" if value is None else f"{value:.4g}" for value in known),
    ]


def state_of(folder: Path, state: Path | None) -> Path:
    """Returns the folder of a node's state.

    Raises:
        Refused: There is none.
    """
    where = state or folder / "state"
    if not where.is_dir():
        raise Refused(f"{where} is not there: name a client's folder, or its --state")
    return where
