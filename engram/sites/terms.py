"""The terms of a training, which a site approves, and the answers that its approval covers.

It covers each round once, in ascending order. A coordinator that was restarted asks again for the
rounds after its last checkpoint, whose replies are kept no more; a node that died at work is sent
the same message. There may be as many such answers as others. A restart is known by its going back,
whatever number its run has, so that a server gains nothing by inventing numbers.
"""

import hashlib
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path

from engram.client.requests import durable_of, round_of
from engram.guards.accounting.guarantee import guarantee
from engram.guards.presets import client_guards
from engram.settings.errors import Refused, one_line, printable
from engram.settings.experiment import Experiment, default_config
from engram.settings.files import sorted_json
from engram.settings.fingerprint import fingerprint
from engram.settings.plugins import plugins
from engram.sites.approvals import Awaited, Request, Tally, given, write
from engram.wire.messages import EVALUATE, TRAIN, Question
from engram.wire.wire import ROSTER_QUERY, SECURE_QUERY, digest


def request_of(experiment: Experiment, training: str, run: int) -> Request:
    """Returns the request for a training, without time and answer.

    Its terms are all that a site is shown, but for the run's number: the training, the settings
    that affect results, the numbers of rounds and answers, the plug-ins; and the source.
    """
    e, usual, masks = experiment, default_config(), client_guards(experiment).masks
    settings = {key: value for key, value in e.identity().items() if key != "data-dir"}
    scored = 1 + ceil(e.rounds / e.eval_every)  # before the first round, too
    answers = {TRAIN: e.rounds * e.own.asks, EVALUATE: scored}
    answers |= {SECURE_QUERY: 4 * e.rounds} if masks else {}
    own = {
        key: printable(value) if isinstance(value, str) else value
        for key, value in settings.items()
        if value != usual.get(key) and key != "method"
    }
    named = tuple(one_line(name.rpartition("/")[2]) for name in plugins())
    what = e.method, e.rounds, answers, 1 if masks else e.checkpoint_every, own, named, guarantee(e)
    request = Request(training, "", run, *what)
    shown = asdict(replace(request, run=0)), settings, fingerprint()
    digest = hashlib.sha256(sorted_json(shown)).hexdigest()
    return replace(request, terms=digest[:32])  # 128 bits, which no two requests share


def count(folder: Path, request: Request, question: Question) -> None:
    """Counts the answer to a message of an approved training, on the disk, before it is given.

    Roster queries are answered until something was asked for that the approval does not cover.

    Raises:
        Awaited: The approval does not cover the answer.
        Refused: The training has fewer rounds, or the count cannot be written.
    """
    used, kind = given(folder, request), question.kind
    if used.beyond and (kind == ROSTER_QUERY or not used.tallies):
        raise Awaited(request, used.beyond)
    if kind not in request.answers:  # it is answered, or refused, at any rate
        return
    if (number := round_of(question.content)) > request.rounds:
        raise Refused(f"this site has approved {request.rounds} rounds, got round {number}")
    so_far, most = used.tallies.get(kind, Tally()), request.answers[kind]
    asked = Tally(run=request.run, number=number, content=digest(question.content))
    durable, parts = durable_of(question.content), most // request.rounds
    after = _counted(so_far, asked, request.every, parts, durable)
    if after is None or max(after.new, after.again) > most:
        told = f"{so_far.new} answers so far, and {so_far.again} again"
        used = replace(used, beyond=f"round {number} ({kind}) is beyond what was approved ({told})")
        after = so_far
    write(folder, request, replace(used, tallies={**used.tallies, kind: after}))
    if after is so_far:
        raise Awaited(request, used.beyond)


def _counted(tally: Tally, asked: Tally, every: int, parts: int, durable: int) -> Tally | None:
    """Adds a message, of so many parts in a round, to a tally; None if it comes out of turn."""
    before, floor, part = tally.before, tally.number, 1
    if asked.content == tally.content:
        return replace(tally, again=tally.again + 1)
    if asked.run == tally.run and asked.number == tally.number and tally.parts < parts:
        part = tally.parts + 1
    elif asked.number <= tally.number:  # a restart, from the last checkpoint before the furthest
        before = max(before, tally.number)
        floor = (before - 1) // every * every
    if asked.number <= max(floor, durable or -1) and part == 1:
        return None
    new, again = tally.new + (asked.number > before), tally.again + (asked.number <= before)
    return replace(asked, new=new, again=again, parts=part, before=before)
