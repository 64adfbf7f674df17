"""The papers' experiments, a folder for each paper: ``engram reproduce``.

A new study is a dataclass of ``Settings``, whose fields become its command's options; a module with
``work``, which has its jobs done by ``Pool.run``, and ``report``, which summarizes, tabulates and
draws what they found; and an entry in ``command.STUDIES``.
"""
