"""The papers' experiments, a folder for each paper: ``engram reproduce``.

A new study is a dataclass of ``Settings``, whose fields become its command's options; a module with
``work``, which runs its jobs by ``Pool.run``, and ``report``, which makes tables and plots of their
results; and an entry in ``command.STUDIES``.
"""
