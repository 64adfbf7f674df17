"""A client's answers to questions of the link, in a node's worker."""

import sys
from typing import Any, Final

from engram.client.app import answer_question
from engram.link.blobs import Blob
from engram.link.node.worker import Outcome, Work
from engram.link.records import from_contents, to_parts
from engram.settings.errors import AWAITED, BUSY, REFUSED, EngramError, Refused, brief, one_line
from engram.settings.files import parse_json
from engram.wire.messages import NodeContext, Question

_LARGEST_CONFIG: Final = 2**20  # bytes; Engram's has about ten thousand
_ERRORS: Final = {REFUSED: "refused", BUSY: "busy", AWAITED: "awaited"}


def outcome_of(work: Work, node_config: dict[str, Any]) -> Outcome:
    """Answers a question; writes the content of its reply to a file."""
    try:
        context = NodeContext(work.run, node_config, _run_config(work.contents[0]))
        contents = [c if isinstance(c, bytes) else c.view() for c in work.contents[1:]]
        question = Question(work.node, work.kind, from_contents(contents, sys.maxsize))
        del contents
        reply = answer_question(question, context)
        question.content = {}  # the reply may be as large
        if reply.error:
            code, reason = reply.error
            said = _ERRORS.get(code)
            return Outcome(None, said or "failed", reason, 0 if said else code)
        return Outcome(Blob.write(work.place, to_parts(reply.content), work.key))
    except EngramError as error:
        return Outcome(None, "refused", str(error))
    except Exception as error:  # reported to the server, as by Flower's own nodes
        return Outcome(None, "failed", one_line(f"{type(error).__name__}: {error}"))


def _run_config(content: bytes | Blob) -> dict[str, Any]:
    """Reads a run's settings, which the ClientApp checks, from an untrusted sender.

    Raises:
        Refused: They are no object of JSON.
    """
    size = len(content) if isinstance(content, bytes) else content.size
    if size > _LARGEST_CONFIG:
        raise Refused(f"the run's config must have at most {_LARGEST_CONFIG} bytes")
    try:
        config = parse_json(content if isinstance(content, bytes) else bytes(content.view()))
    except ValueError as error:
        raise Refused(f"the run's config cannot be read: {one_line(str(error))}") from error
    if not isinstance(config, dict):
        raise Refused(f"the run's config must be an object of JSON, got {brief(config)}")
    return config
