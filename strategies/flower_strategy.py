"""Any method as a Flower strategy, for clients with a training loop of their own."""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from inspect import signature
from logging import getLogger
from pathlib import Path
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from engram.core.method import Method, Update
from engram.core.rounds import merged
from engram.core.settings import about
from engram.core.slots import flat, unflat
from engram.core.streams import Stream, generator
from engram.core.tree import multiplied, select
from engram.core.types import Params
from engram.flower.messages import CONSTANT, ENGRAM, START, to_records
from engram.flower.module import NetworkModule
from engram.flower.server import Net, ServerSide, Weights
from engram.guards.chain import parted
from engram.guards.guard import Guard
from engram.runs import checkpoints
from engram.settings.errors import Refused, one_line
from engram.strategies.running.base import widened
from engram.strategies.running.reply_border import read_reply
from engram.wire.flower import to_params, to_record, to_reply
from engram.wire.messages import TRAIN, Content, Question
from engram.wire.tensors import difference

_log = getLogger("flwr.engram")
_SLOTS, _WORDS = "slots.safetensors", "strategy.json"
_SMALL: Final = 2**16  # bytes of constants that travel with every message
_MOD: Final = "give its app ClientApp(mods=[engram.flower.mod])"
_COHORTS: Final = {MessageType.TRAIN: Stream.COHORT, MessageType.EVALUATE: Stream.SCORED}

FEDAVG: Final = signature(FedAvg).parameters


class MethodStrategy(FedAvg):
    """A method as a Flower strategy: its cohorts are of FedAvg's sizes, its merge the method's.

    Args:
        net: The network, or the class that makes it, for methods that start from several.
        settings: The method's settings.
        personal: Parameters that clients keep, as ``personal`` of an experiment (``head.*``); by
            default the method's own part, such as the head.
        weighting: Weight of an update: ``rows``, as Flower's FedAvg has it, ``clients``, which are
            all alike, or ``paper``, as the method's paper has it.
        outputs: Number of classes; by default that of the last layer's outputs.
        guards: Protections, in the order in which they act; of those that act at clients, each
            client must have the same in its ``engram.flower.Site``.
        seed: Seed of cohorts, and of the server's draws. Clients are numbered by their nodes' ids.
        resume: Folder of checkpoints, from the last of which it goes on. None: nothing is stored.
        **flower: Arguments of Flower's ``FedAvg``, such as ``fraction_train``.

    Attributes:
        slots: The server's slots after the last round.

    Raises:
        Refused: They do not go together.
    """

    def __init__(
        self, net: Net, settings: Any, *, personal: str = "", weighting: Weights = "rows",
        outputs: int = 0, guards: Sequence[Guard] = (), seed: int = 0,
        resume: str | Path | None = None, **flower: Any,
    ) -> None:  # fmt: skip
        super().__init__(*(flower.get(n, p.default) for n, p in FEDAVG.items()))
        self.settings, self._name, self._seed = settings, about(settings).name, seed
        self._side = ServerSide(net, settings, personal, weighting, outputs, guards, seed)
        self._side.check(self.min_train_nodes)
        self._numbers: dict[int, int] = {}  # clients, by their nodes
        self._holding: set[int] = set()  # nodes that have a memory
        self._asked: Sequence[int] = ()  # nodes of the last round
        self.slots = self._start = self._side.build(1)
        self._folder, self._done = None if resume is None else Path(resume), 0
        self._training = secrets.token_hex(8)
        if self._folder is not None:
            self._resume(self._folder)

    @property
    def method(self) -> Method:
        """The method, for the clients so far."""
        return self._side.method

    # --- Flower's functions -----------------------------------------------------------------

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord | None = None, num_rounds: int = 3,
        timeout: float = 3600, train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:  # fmt: skip
        """Runs the rounds up to ``num_rounds``, from the network or from arrays of it.

        ``Result.arrays`` are the global model with all that is constant in the network, as its
        ``load_state_dict`` takes them, but for personal parameters. Rounds before a resumption are
        in no result.

        Raises:
            Refused: The arrays are not those of the network, or all replies were left out.
        """
        self._why = ""  # of the last reply that was left out
        if initial_arrays is not None and not self._done:
            try:
                self._side.net.load_state_dict(initial_arrays.to_torch_state_dict())
            except RuntimeError as error:
                words = "initial_arrays must be net's state_dict"
                raise Refused(f"{words}: {one_line(str(error))}") from error
            self.slots = self._start = self._side.build(1)
        done, rounds = self._done, max(num_rounds - self._done, 0)
        score = evaluate_fn and (lambda n, x: evaluate_fn(n + done, self.whole(x)))
        configs = train_config, evaluate_config
        result = super().start(grid, self._arrays(), rounds, timeout, *configs, score)
        if self._why and not result.arrays:
            raise Refused(f"all replies of all rounds were left out, the last one: {self._why}")
        result.arrays = self.whole(result.arrays or self._arrays())
        for name in vars(result).keys() - {"arrays"}:
            setattr(result, name, {n + done: x for n, x in getattr(result, name).items()})
        return result

    def summary(self) -> None:
        """Logs the method and its settings, and Flower's own summary."""
        given = ", ".join(f"{n.strip('_')}={x}" for n, x in asdict(self.settings).items())
        words = "\t├──> %s (%s): %s; eta counts in session.train alone, in a loop its own step size"
        getLogger("flwr").info(words, self._name, about(self.settings).source, given)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks a cohort to train, each client with the slots that are its own."""
        del arrays
        number = server_round + self._done
        share, least = self.fraction_train, self.min_train_nodes
        self._asked = self._cohort(grid, number, share, least, MessageType.TRAIN)
        return self._messages(number, config, self._asked, MessageType.TRAIN)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks a cohort to score the models that serve its clients."""
        del arrays
        number = server_round + self._done
        share, least = self.fraction_evaluate, self.min_evaluate_nodes
        nodes = self._cohort(grid, number, share, least, MessageType.EVALUATE)
        return self._messages(number, config, nodes, MessageType.EVALUATE)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Merges the updates that fit the method and its guards; logs those that do not."""
        number, updates = server_round + self._done, list[Update]()
        taken: dict[int | None, Message] = {}  # by client, as an update has it
        guard = self._side.guard
        at = self._side.at(self.slots, len(self._asked), number)
        for message in sorted(replies, key=self._client_of):
            node, client = message.metadata.src_node_id, self._client_of(message)
            reply = to_reply(Question(node, TRAIN, {}), message)
            if rejected := read_reply(reply, partial(self._read, client, updates, message)):
                self._leave_out(number, node, rejected.reason)
                continue
            self._holding.add(node)
            taken[client] = message
        most = guard.weigh([int(update.rows) for update in updates])
        updates = [update._replace(rows=min(update.rows, most)) for update in updates]
        admitted, refused = parted([guard.admit(at, update) for update in updates])
        gathered, more = parted(guard.gather(at, admitted)) if admitted else ([], [])
        for each in (*refused, *more):
            message = taken.pop(each.update.client)
            self._leave_out(number, message.metadata.src_node_id, each.reason)
        if not gathered:
            return None, None
        self.slots = merged(self.method, self.slots, gathered)
        if self._folder is not None:
            training = {"training": self._training, "nodes": self._numbers}
            training |= self._side.words | {"holding": [*self._holding]}
            words = json.dumps(training).encode()
            checkpoints.write_checkpoint(
                self._folder, number, {_SLOTS: flat(self.slots), _WORDS: words}
            )
        contents = [message.content for message in taken.values()]
        return self._arrays(), self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Merges scores of the models that serve clients; logs those of others."""
        taken, number = list[Message](), server_round + self._done
        for message in replies:
            if message.has_error() or ENGRAM in message.content or self._side.serves_received():
                taken.append(message)
                continue
            words = "round %d: node %d's score is left out, as %s serves it by another model"
            how = f"{words}: {_MOD}, or engram.flower.served around its evaluation"
            _log.warning(how, number, message.metadata.src_node_id, self._name)
        return super().aggregate_evaluate(server_round, taken)

    def whole(self, arrays: ArrayRecord) -> ArrayRecord:
        """Returns arrays with all that is constant in the network."""
        return to_record(self._constant() | to_params(arrays))

    # --- The method -------------------------------------------------------------------------

    def _meet(self, nodes: Sequence[int]) -> None:
        """Numbers nodes that are new, and makes room for them."""
        before = max(1, len(self._numbers))
        if self._numbers and self._numbers.keys().isdisjoint(nodes):
            self._renumber(nodes)
        for node in nodes:
            self._numbers.setdefault(node, len(self._numbers))
        among = len(self._numbers)
        if among <= before:
            return
        start = self._side.build(among)
        if self.slots is self._start:
            self.slots = self._start = start
            return
        self.slots = unflat(widened(flat(self.slots), flat(start)), start)
        for slot in self.method.server.means:
            self.slots[slot] = multiplied(self.slots[slot], before / among)

    def _renumber(self, nodes: Sequence[int]) -> None:
        """Gives nodes the numbers of those that are gone, as a simulation's are in its next run."""
        if self.method.server.send(self.slots, [0])[1]:
            words = f"for {self._name} has models of them, got a simulation's, new in each run"
            raise Refused(f"resume must have the nodes of its checkpoint, {words}")
        gone, all_hold = [*self._numbers], self._holding == self._numbers.keys()
        numbered = [*nodes, *gone[len(nodes) :]][: len(gone)]
        self._numbers = {node: i for i, node in enumerate(numbered)}
        if self._holding and not all_hold and self.method.client.start:
            words = "nodes have new ids; of %d clients %d had a memory: who has lost it begins anew"
            _log.warning(words, len(gone), len(self._holding))
        self._holding = set(self._numbers) if all_hold else set()

    def _constant(self) -> Params:
        leaves = NetworkModule(self._side.net).leaves
        return {n: x for n, x in self._side.net.state_dict().items() if n not in leaves}

    def _arrays(self) -> ArrayRecord:
        """Returns the global model; where there is none, all that clients receive alike."""
        common, _ = self.method.server.send(self.slots, [0])
        model = self.slots.get("model")
        return to_record(flat(common) if model is None else model)

    def _resume(self, folder: Path) -> None:
        """Goes on from the newest intact checkpoint of a folder, if there is one."""
        for number, path in reversed(checkpoints.checkpoints_in(folder).items()):
            try:
                files = checkpoints.read_checkpoint(path, number)
                break
            except checkpoints.DamagedCheckpoint as error:
                _log.warning("round %d of %s is damaged, and left out: %s", number, folder, error)
                checkpoints.drop_checkpoint(path)  # so that its round can be stored again
        else:
            return
        arrays, words = checkpoints.tensors_of(files, _SLOTS, None), json.loads(files[_WORDS])
        mine = self._side.words
        if differing := {key: words[key] for key in mine if words[key] != mine[key]}:
            raise Refused(f"resume must be a folder of this {self._name}, got one with {differing}")
        self._training, self._done = words["training"], number
        self._numbers = {int(node): client for node, client in words["nodes"].items()}
        self._holding = {*words.get("holding", ())}
        start = self._side.build(len(self._numbers))
        if wrong := difference(arrays, flat(start)):
            raise Refused(f"resume must be a folder of this network, got {folder}: {wrong}")
        self.slots = unflat(arrays, start)
        _log.info("goes on after round %d of %s", number, folder)

    # --- Messages ---------------------------------------------------------------------------

    def _cohort(self, grid: Grid, number: int, fraction: float, least: int, kind: str) -> list[int]:
        """Waits for enough nodes, and draws some by seed and round."""
        if not fraction:
            return []
        wanted = max(self.min_available_nodes, least)
        while len(nodes := sorted(grid.get_node_ids())) < wanted:
            _log.info("%d of at least %d nodes are there", len(nodes), wanted)
            time.sleep(1)
        self._meet(nodes)
        nodes.sort(key=self._numbers.__getitem__)
        size = max(int(len(nodes) * fraction), least)
        drawn = generator(self._seed, _COHORTS[kind], number).permutation(len(nodes))[:size]
        return [nodes[i] for i in sorted(drawn)]

    def _messages(
        self, number: int, config: ConfigRecord, nodes: Sequence[int], kind: str
    ) -> list[Message]:
        if not nodes:
            return []
        common, own = self.method.server.send(self.slots, [self._numbers[n] for n in nodes])
        fixed: dict[str, Any] = to_records(common, self.arrayrecord_key) | {
            self.configrecord_key: ConfigRecord(dict(config) | {"server-round": number}),
            ENGRAM: self._side.record(number, self._training),
        }
        constant = self._constant()
        if sum(x.nbytes for x in constant.values()) <= _SMALL:
            fixed[CONSTANT] = to_record(constant)  # for clients that load whole state dicts
        start, kinds = self.method.client.start, self.method.kinds
        begins = to_record(flat({s: x for s, x in start.items() if kinds[s] == "model"}))
        found = []
        for i, node in enumerate(nodes):
            content = fixed | to_records(select(own, i), self.arrayrecord_key)
            if start and node not in self._holding:
                content[START] = begins
            found.append(Message(RecordDict(content), dst_node_id=node, message_type=kind))
        return found

    def _client_of(self, message: Message) -> int:
        return self._numbers.get(message.metadata.src_node_id, -1)

    def _read(self, client: int, updates: list[Update], message: Message, content: Content) -> None:
        """Adds a client's update; see ``ServerSide.read``."""
        if ENGRAM not in message.content:
            how = f"{_MOD}, or engram.flower.client around its loop"
            raise ValueError(f"its app has trained by no method of Engram: {how}")
        slots = self._side.read(content, self.arrayrecord_key)
        (measured,) = message.content.metric_records.values()
        rows = float(measured[self.weighted_by_key])  # type: ignore[arg-type] # lists raise
        if client < 0 or not 0 < rows < float("inf"):
            raise ValueError(f"{self.weighted_by_key} must be above 0, got {rows}")
        updates.append(Update(slots, rows, client=client))

    def _leave_out(self, number: int, node: int, reason: str) -> None:
        self._holding.discard(node)  # it is sent what clients begin with again
        self._why = reason
        _log.warning("round %d: node %d is left out: %s", number, node, reason)
