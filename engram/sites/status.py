"""State of a site's node, for `engram status` of a client's folder."""

from pathlib import Path
from typing import Any, NamedTuple

from engram.client.training_folders import Kept, kept
from engram.guards.secure.registry import fingerprint
from engram.guards.secure.site_registry import own_registry
from engram.link.credentials import NodeCredentials, read_node
from engram.settings.files import is_locked
from engram.sites.approvals import APPROVALS, waiting
from engram.sites.audit import AUDIT, Audit
from engram.sites.hash_chain import Chained
from engram.sites.ledger import LEDGER, Ledger
from engram.sites.policy import Policy, in_force, policy_file
from engram.wire.clock import now

_LAST = 5  # rounds that are shown


class SiteStatus(NamedTuple):
    """A node, as its site sees it."""

    credentials: NodeCredentials  # its federation, and its place there
    runs: bool  # whether the node runs
    policy: Policy
    file: Path | None  # the policy's file; None if there is none, so that defaults hold
    rounds: int  # rounds of training in this day of UTC
    waiting: list[str]  # digests of the requests that wait for the site's approval
    memories: list[Kept]  # clients' newest memories
    log: Chained  # the last lines of the log, and whether it is whole
    spent: dict[int, float]  # epsilon of each account of its ledger
    budget: list[str]  # the same in words, and of how much; empty if the site has neither
    registry: str  # fingerprint of the registry by which it knows other sites; "" if it has none

    def rules(self) -> dict[str, Any]:
        """Returns the policy's rules, by their keys."""
        return self.policy.model_dump(mode="json", by_alias=True)

    def to_json(self) -> dict[str, Any]:
        """Returns it for programs."""
        c, file = self.credentials, None if self.file is None else str(self.file)
        node: dict[str, Any] = {"federation": c.federation, "superlink": c.superlink}
        node |= {"client": c.partition_id, "runs": self.runs}
        rules = {"policy-file": file, "policy": self.rules(), "rounds-today": self.rounds}
        memories = [entry._asdict() for entry in self.memories]
        spent = {str(account): epsilon for account, epsilon in self.spent.items()}
        kept = {"waiting": self.waiting, "memories": memories, "spent": spent}
        log = {"log": self.log.lines, "fault": self.log.fault}
        return {**node, **rules, **kept, **log, "registry": self.registry}


def site_status(folder: Path, state: Path | None, policy: Path | None) -> SiteStatus:
    """Looks at a client's folder, where state and policy are by default.

    Raises:
        Refused: The folder, the policy or the log cannot be read.
    """
    where, rules = state or folder / "state", policy or folder
    audit, limits = Audit(where / AUDIT), in_force(rules, where)[0]
    log, book = audit.read(), Ledger(where / LEDGER, limits.epsilon, limits.delta)
    books, registry = book.read(), own_registry(folder)
    budget = [books.fault] if books.fault else book.in_words(books)
    return SiteStatus(
        read_node(folder),
        is_locked(where / "lock"),
        limits,
        policy_file(rules),
        audit.rounds(now()),
        [one.terms for one in waiting(where / APPROVALS)],
        list(kept(where / "memory")),
        log._replace(lines=log.lines[-_LAST:]),
        book.spent(books),
        budget if limits.epsilon or books.lines or books.fault else [],
        fingerprint(registry) if registry else "",
    )
