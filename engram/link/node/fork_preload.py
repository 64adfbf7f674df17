"""The modules that the workers of nodes in one process share: see ``link.node.worker.Worker``."""

import gc

import engram.link.node.client_app  # noqa: F401 - what workers run

gc.collect()
gc.freeze()  # a later collection would write to all of it, and so make each worker a copy
