"""What nobody honest would send: ways to spoil an honest reply, by the kind they are refused as."""

from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from engram.wire.messages import Error
from tests.strategies.running.drafts import EVALUATE, HUGE, LONG, NASTY, TRAIN, do, forgery, pick

MAGIC = b"\x93NUMPY"
exploded = []


def clutter(d, rng):
    """Adds what does no harm: records and entries that nobody asked for, and nobody reads."""
    d.types |= {"junk": ArrayRecord, "more": ConfigRecord, "\n": MetricRecord}
    junk = {
        "junk": {"x": Array(np.zeros(3))},
        "more": {"config": LONG},
        "\n": {"num-examples": 10**18},
    }
    key = pick(rng, list(junk))
    d.records[key] = junk[key]
    d.clients["fingerprint"] = pick(rng, ["another", LONG, 1, [2.0]])
    d.metrics["loss"] = pick(rng, [float("nan"), 1, [1, 2]])


# --- Names, shapes, dtypes -------------------------------------------------------------------


def victim(d, rng):
    return pick(rng, list(d.arrays))


def values(array):
    return np.load(BytesIO(array.data))


@forgery("names", "arrays")
def other_names(d, rng):
    name = victim(d, rng)
    strange = ["", "dense9.weight", name.upper(), f"{name} ", "0", "../../model", "__class__"]
    new = pick(rng, [*strange, "a\nb", "\0", LONG, name.replace(".", "\u2024")])
    do(
        rng,
        lambda: d.arrays.pop(name),
        lambda: d.arrays.update({new: d.arrays[name]}),
        lambda: d.arrays.update({new: d.arrays.pop(name)}),
        lambda: d.arrays.update({f"{new[:9]}{i}": d.arrays[name] for i in range(30)}),
        d.arrays.clear,
    )


@forgery("shapes", "arrays")
def other_shapes(d, rng):
    name = victim(d, rng)
    a = values(d.arrays[name])
    others = [a.T, a[None], a[..., None], a[:0], a[0], np.concatenate([a, a]), a.ravel()]
    others += [a[..., :-1], a.reshape(-1, 1), np.float32(1) * np.ones(()), a[[0]]]
    d.arrays[name] = Array(np.array(pick(rng, [x for x in others if np.shape(x) != a.shape])))


DTYPES = ["f8", "f2", "i4", "i8", "u1", "c8", "c16", "?"]
STRANGE = [">f4", "S4", "U4", "V4", "M8[s]", [("re", "f4"), ("im", "f4")]]


@forgery("shapes", "arrays")
def other_dtypes(d, rng):
    name = victim(d, rng)
    d.arrays[name] = Array(np.zeros(d.arrays[name].shape, dtype=pick(rng, DTYPES)))


@forgery("error", "arrays")
def strange_dtypes(d, rng):
    name = victim(d, rng)
    d.arrays[name] = Array(np.zeros(d.arrays[name].shape, dtype=pick(rng, STRANGE)))


def lie(d, rng, **fields):
    name = victim(d, rng)
    honest = d.arrays[name]
    said = {key: getattr(honest, key) for key in ("dtype", "shape", "stype", "data")}
    d.arrays[name] = Array(**(said | fields))


@forgery("error", "arrays")
def false_labels(d, rng):
    shapes = [(), (0,), (-1,), (10**12,), (2**62, 2**62), (HUGE,), (1,) * 1000, (3,) * 10**4]
    dtypes = ["float64", "object", "", "float32\n", "O", ">f4", LONG, "numpy.float32", "complex64"]
    do(
        rng,
        lambda: lie(d, rng, shape=pick(rng, shapes)),
        lambda: lie(d, rng, dtype=pick(rng, dtypes)),
    )


# --- Bytes -----------------------------------------------------------------------------------


def body(data):
    """Returns where an array's numbers begin."""
    return 10 + int.from_bytes(data[8:10], "little")


def respell(d, rng, change):
    name = victim(d, rng)
    honest = d.arrays[name]
    changed = change(honest.data)
    d.arrays[name] = Array(honest.dtype, honest.shape, honest.stype, changed)


@forgery("error", "arrays")
def torn_bytes(d, rng):
    def flipped(data):
        at = rng.integers(body(data))
        return data[:at] + bytes([data[at] ^ (1 << rng.integers(8))]) + data[at + 1 :]

    change = pick(
        rng,
        [
            lambda data: data[: rng.integers(len(data))],
            lambda data: data[: body(data)],
            lambda data: data + rng.bytes(1 + rng.integers(100)),
            lambda data: data[body(data) :],
            lambda data: rng.bytes(len(data)),
            lambda data: MAGIC + rng.bytes(len(data)),
            lambda data: MAGIC + b"\1\0" + rng.bytes(len(data)),
            lambda data: bytes(len(data)),
            lambda data: b"PK\3\4" + data,
            lambda data: b"",
            flipped,
        ],
    )
    respell(d, rng, change)


def header(text, version=b"\1\0", length=None):
    text = text.encode("latin1", "replace")[:65535]
    width = 2 if version == b"\1\0" else 4
    return MAGIC + version + (length or len(text)).to_bytes(width, "little") + text


TEXTS = ["((((((((", "{" * 9000, "-" * 9000, "[" * 60000, "9" * 9000, "'" * 3, "\\d", "f'{1}'"]
TEXTS += ["__import__('os').abort()", "{'descr': '<f4'}", "{}", "None", "1L", "{'shape': (1L,)}"]


@forgery("error", "arrays")
def other_headers(d, rng):
    def described(data):
        shapes = [(), (-1,), (10**12,), (2**62, 2**62), (8, 2**40), (1,) * 1000, ("8",), 8]
        kinds = ["<f8", "|O", ">f4", "<i4", "a", "|V1000000000", ("<f4", (10**9,)), [("x", "<f4")]]
        shape, descr = pick(rng, shapes), pick(rng, [*kinds, "<f4"])
        order = pick(rng, [True, False, 1])
        said = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}\n"
        return header(said) + data[body(data) :][: pick(rng, [None, 0, 4])]

    def of_version(data):
        stream = BytesIO()
        array = np.load(BytesIO(data))
        np.lib.format.write_array(stream, array, version=pick(rng, [(2, 0), (3, 0)]))
        return stream.getvalue()

    def columns_first(data):
        stream = BytesIO()
        shape = np.load(BytesIO(data)).shape
        np.save(stream, np.ones((*shape[::-1], 2), dtype=np.float32).T)
        return stream.getvalue()

    change = pick(
        rng,
        [
            described,
            described,
            of_version,
            columns_first,
            lambda data: header(pick(rng, TEXTS)) + data[body(data) :],
            lambda data: header("x", length=pick(rng, [60000, 65535])) + data[body(data) :],
            lambda data: header("x", b"\2\0", 2**32 - 1) + data[body(data) :],
            lambda data: MAGIC + b"\x09\x09" + data[8:],
        ],
    )
    respell(d, rng, change)


def explode():
    exploded.append(True)


class Bomb:
    def __reduce__(self):
        return explode, ()


@forgery("error", "arrays")
def pickles(d, rng):
    stream = BytesIO()
    np.save(stream, np.array([Bomb()], dtype=object), allow_pickle=True)
    data = pick(rng, [stream.getvalue(), stream.getvalue()[body(stream.getvalue()) :]])
    lie(d, rng, data=data, stype=pick(rng, ["numpy.ndarray", "pickle", "torch.tensor"]))


@forgery("error", "arrays")
def other_serializers(d, rng):
    names = ["", "pickle", "numpy.ndarray ", "NUMPY.NDARRAY", "torch.tensor", LONG, "a\nb"]
    lie(d, rng, stype=pick(rng, names))


# --- Numbers ---------------------------------------------------------------------------------


def alter(d, name, change):
    array = values(d.arrays[name])
    change(array)
    d.arrays[name] = Array(array)


def somewhere(rng, value):
    def put(array):
        array.flat[rng.integers(array.size)] = value

    return put


@forgery("non-finite", "arrays")
def poison(d, rng):
    value = pick(rng, [np.nan, np.inf, -np.inf])
    fill = pick(rng, [lambda array: array.fill(value), somewhere(rng, value)])
    alter(d, victim(d, rng), fill)


@forgery("non-finite", "clients")
def losses(d, rng):
    given = list(d.clients["losses"])
    bad = [float("nan"), float("inf"), float("-inf"), 1e300, -1e300, 3.5e38]
    given[rng.integers(len(given))] = pick(rng, bad)
    d.clients["losses"] = given


@forgery("scores", "clients")
def negative_losses(d, rng):
    given = list(d.clients["losses"])
    given[rng.integers(len(given))] = pick(rng, [-1e-3, -1.0, -3.4e38])
    d.clients["losses"] = given


@forgery("size", "arrays")
def far_away(d, rng):
    value = pick(rng, [1e30, -1e30, 3e38, -3e38, 1e20, 1e10])

    def stretch(array):
        array *= np.float32(1e8)

    if rng.random() < 0.5:
        alter(d, victim(d, rng), somewhere(rng, value))
    else:
        fill = pick(rng, [lambda array: array.fill(value), stretch])
        for name in list(d.arrays):
            alter(d, name, fill)


@forgery("size", "metrics")
def claims(d, rng):
    n = d.metrics["num-examples"]
    numbers = [0, 1, -n, n + 1, n - 1, 10**18, 2**63 - 1, HUGE, -1]
    reals = [float(n), n + 0.5, 0.0, 1e308, float("nan"), float("inf"), float("-inf")]
    d.metrics["num-examples"] = pick(rng, [*numbers, *reals, [n], [], [n] * 1000, [float(n)]])


# --- Who, and when ---------------------------------------------------------------------------


@forgery("round", "clients", TRAIN, EVALUATE)
def other_rounds(d, rng):
    d.clients["server-round"] += pick(rng, [1, -1, 100, -100, 2**62, -(2**62)])


@forgery("malformed", "clients", TRAIN, EVALUATE)
def no_rounds(d, rng):
    n = d.clients.pop("server-round")
    given = pick(rng, [None, str(n), float(n), True, [n], b"1", LONG, [LONG] * 10, 2**63, HUGE])
    if given is not None:
        d.clients["server-round"] = given


def strangers(ids, rng):
    """Other lists of clients than those that were asked."""
    first, *rest = ids
    lists = [[i + 1 for i in ids], ids[::-1], [first] * len(ids), [first], [*ids, first]]
    lists += [[], [-1, first], [*ids, 10**6], [*rest, 2**63 - 1]]
    lists += [[*rest, 99], [first + 1, *rest], list(range(10**4))]
    return pick(rng, [one for one in lists if one != ids])


@forgery("clients", "clients")
def others(d, rng):
    ids, given = d.clients["ids"], d.clients["losses"]

    def replaced():
        d.clients["ids"] = strangers(ids, rng)
        d.clients["losses"] = (given * 10**4)[: len(d.clients["ids"])]

    def failing():
        some = [ids[:1], ids, [99], [-1], [ids[0], 99]]
        d.clients["failed"] = pick(rng, some)

    def twice():
        first, *rest = ids
        d.clients.update(ids=rest, losses=given[1:], failed=[first, first])

    def nobody():
        d.clients.update(ids=[], losses=[], failed=ids)

    do(rng, replaced, failing, twice, nobody)
    d.clients["reasons"] = [pick(rng, NASTY) or "" for _ in d.clients["failed"]]


SCALARS = [0, 0.5, "x", b"x", True, LONG, b"x" * 10**5]


@forgery("malformed", "clients")
def other_columns(d, rng):
    wrong = {
        "ids": [[0.0, 1.0], ["0"], [True, False], [b"0"], [LONG] * 10, [HUGE], [0, 2**63]],
        "losses": [[1, 2], ["a"], [True], [0.5], [0.5] * 10**4],
        "failed": [[0.5], ["x"], [True], [7], [-HUGE], list(range(10**4))],
        "reasons": [[1], [b"x"], [0.5], ["x"], [LONG]],
    }
    key = pick(rng, list(wrong))
    if rng.random() < 0.1:
        del d.clients[key]
    else:
        d.clients[key] = pick(rng, [*wrong[key], *wrong[key], *SCALARS])


@forgery("malformed", "whole", TRAIN, EVALUATE)
def other_records(d, rng):
    def retyped():
        d.types["clients"], d.records["clients"] = pick(rng, [ArrayRecord, MetricRecord]), {}

    key = pick(rng, [key for key in ("arrays", "clients") if key in d.records])
    do(rng, lambda: d.records.pop(key), retyped, d.records.clear)


@forgery("malformed", "metrics")
def no_examples(d, rng):
    do(rng, lambda: d.metrics.pop("num-examples"), lambda: d.records.pop("metrics"))


@forgery("error", "whole", TRAIN, EVALUATE)
def errors(d, rng):
    code = pick(rng, [0, 1, 2, 3, 5, 1000, 1002, -1, 2**31, 10**18])
    d.error = Error(code, pick(rng, NASTY))


@forgery("diverged", "whole", TRAIN, EVALUATE)
def divergence(d, rng):
    d.error = Error(1001, pick(rng, NASTY))


# --- Scores ----------------------------------------------------------------------------------

SHARES = ("accuracy", "accuracy-common")
SCORED_LOSSES = ("loss", "loss-common")
COLUMNS = (*SHARES, *SCORED_LOSSES, "queries")


def put(d, rng, key, value):
    column = list(d.clients[key])
    column[rng.integers(len(column))] = value
    d.clients[key] = column


@forgery("scores", "clients", EVALUATE)
def impossible_scores(d, rng):
    nan, inf = float("nan"), float("inf")
    do(
        rng,
        lambda: put(d, rng, pick(rng, SHARES), pick(rng, [-0.1, 1.1, 1e6, inf, -inf, 1e300])),
        lambda: put(d, rng, pick(rng, [*SHARES, *SCORED_LOSSES]), nan),
        lambda: put(d, rng, pick(rng, SCORED_LOSSES), pick(rng, [1e300, -3.4e38, -1e-3, 3.5e38])),
        lambda: put(d, rng, pick(rng, SCORED_LOSSES), -inf),
        lambda: put(d, rng, "queries", pick(rng, [0, -1, 2**62, 10**18])),
    )


@forgery("clients", "clients", EVALUATE)
def scores_of_others(d, rng):
    d.clients["ids"] = strangers(d.clients["ids"], rng)
    for key in COLUMNS:
        d.clients[key] = (d.clients[key] * 10**4)[: len(d.clients["ids"])]


@forgery("malformed", "clients", EVALUATE)
def other_score_columns(d, rng):
    key = pick(rng, ["ids", *COLUMNS])
    whole = key in ("ids", "queries")
    lists = [["1", "2"], [b"1", b"2"], [True, False], [1.0, 0.5] if whole else [1, 0]]
    lists += [d.clients[key] * 2, d.clients[key][:-1], [LONG] * 2]
    if rng.random() < 0.1:
        del d.clients[key]
    else:
        d.clients[key] = pick(rng, [*lists, *lists, *SCALARS])
