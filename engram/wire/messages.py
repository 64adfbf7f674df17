"""Questions to nodes and their replies, as strategies, engines and hosts have them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Entries = dict[str, Any]
"""A record: tensors by name, or numbers, texts, bytes and lists of such."""
Content = dict[str, Entries]
"""Records by name; of another machine, they may hold anything of these types."""

TRAIN: Final = "train"
EVALUATE: Final = "evaluate"
RAISED: Final = 2  # code of an error for an exception on the client's side, as Flower has it


class Error(NamedTuple):
    """An error in place of a reply's content; for codes see ``engram.settings.errors``."""

    code: int
    reason: str


@dataclass(eq=False, slots=True)
class Question:
    """Question to a node.

    Attributes:
        kind: ``train``, ``evaluate`` or a query. ``engram.client.requests.Request`` says which
            records these have.
        name: Its name while it is in transit.
    """

    node: int
    kind: str
    content: Content
    name: str = ""


@dataclass(eq=False, slots=True)
class Reply:
    """Reply to a question: content from an untrusted sender, or an error."""

    question: Question
    content: Content = field(default_factory=dict)
    error: Error | None = None

    def has_code(self, *codes: int) -> bool:
        """Whether it is an error with one of some codes."""
        return self.error is not None and self.error.code in codes


class NodeContext(NamedTuple):
    """The run that a question belongs to, and the node that it reaches."""

    run_id: int
    node_config: Mapping[str, Any]
    run_config: Mapping[str, Any]
