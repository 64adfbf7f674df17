"""Moves every module of a checkout to its new place, and rewrites what names it.

    python move.py CHECKOUT

Imports are rewritten by their places in the syntax tree; modules named in strings, docstrings,
comments, documentation and configuration by whole dotted names that the table has.
"""
import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

from table import DATA, PACKAGES, R, ROOMS

root = Path(sys.argv[1])
LINKED = {"client", "server", "strategies", "simulations"}


def git(*words):
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout


def module_of(path):
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


files = [f for f in git("ls-files").splitlines() if f]
python = [f for f in files if f.endswith(".py")]
# What `engram new` writes moves nowhere: to a project, Engram is a package like others.
ours = {
    module_of(f): f
    for f in python
    if f.split("/")[0] in {"engram", "federation", *LINKED} and not f.startswith("simulations/project/")
}
packages = {module_of(f) for f in python if f.endswith("__init__.py")} & set(ours)
NEW = {m: R.get(m, m) for m in ours if m not in packages}
AS_MODULES = {m for m in packages if (PACKAGES.get(m) or "").endswith(".py")}
NEW |= {m: PACKAGES[m] for m in packages if m in PACKAGES}
NEW |= {module_of(old.removesuffix("i")): module_of(new.removesuffix("i")) for old, new in DATA.items() if old.endswith(".pyi")}
NEW = {m: n.removesuffix(".py") if n else n for m, n in NEW.items()}


unmapped = [m for m in ours if m not in R and m not in PACKAGES and not m.startswith("engram.methods.")]
unmapped = [m for m in unmapped if m.split(".")[0] != "engram" or m.count(".") > 1]
if unmapped:
    sys.exit(f"table.py has no place for {unmapped}")


def new_name(module):
    """Returns a module's new name; of a package that is dissolved, None."""
    return NEW.get(module, module)


def place(module, is_package):
    """Returns the file of a new name: rooms that are linked stand at the root."""
    parts = module.split(".")
    if parts[0] == "engram" and len(parts) > 1 and parts[1] in LINKED:
        parts = parts[1:]
    return "/".join(parts) + ("/__init__.py" if is_package else ".py")


def owner(dotted):
    """Returns the longest module that a dotted name begins with, and the rest."""
    parts = dotted.split(".")
    for k in range(len(parts), 0, -1):
        head = ".".join(parts[:k])
        if head in NEW:
            return head, parts[k:]
    return None, parts


def renamed(dotted):
    head, rest = owner(dotted)
    if head is None or NEW[head] is None:
        return dotted
    return ".".join([NEW[head], *rest])


def rewrite_imports(source):
    """Rewrites imports, and the names that modules have in the code."""
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = source.encode()
    at = lambda n, end=False: starts[(n.end_lineno if end else n.lineno) - 1] + (n.end_col_offset if end else n.col_offset)
    edits, names, whole = [], {}, []
    taken = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module.split(".")[0] not in {"engram", "federation", *LINKED}:
                continue
            by_module = defaultdict(list)
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in NEW and NEW[full] is not None:
                    package, _, last = NEW[full].rpartition(".")
                    local = alias.asname or alias.name
                    if alias.asname is None and last != alias.name and last not in taken and alias.name not in bound:
                        names[alias.name] = last
                        local = last
                    by_module[package].append(last if local == last else f"{last} as {local}")
                else:
                    target = new_name(node.module)
                    by_module[target or node.module].append(alias.name + (f" as {alias.asname}" if alias.asname else ""))
            indent = " " * node.col_offset
            old = data[at(node):at(node, True)].decode()
            noqa = "".join(f"  {comment}" for comment in re.findall(r"# noqa.*", old))
            text = f"\n{indent}".join(f"from {m} import {', '.join(n)}{noqa}" for m, n in by_module.items())
            if re.sub(r"[\s()]|,(?=\s*\))", "", old).rstrip(",") != re.sub(r"[\s()]", "", text):
                edits.append((at(node), at(node, True), text))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if (new := renamed(alias.name)) != alias.name:
                    if alias.asname is None:
                        whole.append(alias.name)
                    edits.append((at(alias), at(alias, True), new + (f" as {alias.asname}" if alias.asname else "")))
    for node in ast.walk(tree):  # `import federation.flower`, and then federation.flower.name
        if isinstance(node, ast.Attribute) and ast.unparse(node) in whole:
            edits.append((at(node), at(node, True), renamed(ast.unparse(node))))
    for old, new in names.items():
        for n in ast.walk(tree):
            if isinstance(n, ast.Name) and n.id == old:
                edits.append((at(n), at(n, True), new))
    for start, end, text in sorted(edits, reverse=True):
        data = data[:start] + text.encode() + data[end:]
    source = data.decode()
    for old, new in names.items():  # a module's name before one of its own, in docstrings
        source = re.sub(rf"(?<=``){old}(?=\.\w+``)", new, source)
    return source


ANY = re.compile(r"(?<![\w./-])(?:engram|federation|client|server|strategies|simulations)(?:\.[A-Za-z_]\w*)+")
SURE = re.compile(r"(?<![\w./-])(?:engram|federation)(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(r"(?<![\w.}-])(?<!\}/)(?:\.\./)*((?:engram|federation|client|server|strategies|simulations)(?:/\w+)+(?:\.py)?)(?!\w)")


def rename_words(text, pattern):
    def dotted(match):
        head, rest = owner(match[0])
        # A word of a file's name, such as client.key, is no module.
        if head is None or head in {"engram", "federation", *LINKED} or NEW[head] is None:
            return match[0]
        if not rest and match.string[match.end() : match.end() + 1] in ("[", "("):  # a variable's attribute
            return match[0]
        return ".".join([NEW[head], *rest])

    def path(match):
        module = module_of(match[1])
        if module not in NEW or NEW[module] is None:
            return match[0]
        if match.string[match.end() : match.end() + 1] == "/" and module not in packages:
            return match[0]
        new = place(NEW[module], module in packages - AS_MODULES)
        new = new if match[1].endswith(".py") else new.removesuffix("/__init__.py").removesuffix(".py")
        if module in AS_MODULES and not match[1].endswith(".py"):  # the folder of a package that became a file
            new = new.rpartition("/")[0]
        return match[0][: match.start(1) - match.start()] + new

    return PATH.sub(path, pattern.sub(dotted, text))


def wrapped(docstring):
    """Breaks the lines, but the first, that have become too long."""
    lines, out = docstring.split("\n"), []
    out.append(lines.pop(0))
    while lines:
        line = lines.pop(0)
        if len(line) > 100 and not line.endswith('"""'):
            cut = line.rindex(" ", 0, 101)
            rest, line = line[cut + 1 :], line[:cut]
            indent = len(line) - len(line.lstrip())
            after = lines[0] if lines else ""
            deep = len(after) - len(after.lstrip())
            joins = after.strip() and deep >= indent and not after.lstrip().startswith(('"""', "- "))
            item = 2 * bool(re.match(r" *- ", line)) or 4 * bool(re.match(r" *\w+(, \w+)*: ", line))
            if joins and bool(item) == (deep > indent):
                lines[0] = " " * deep + rest + " " + after.lstrip()
            else:
                lines.insert(0, " " * (indent + item) + rest)
        out.append(line)
    return "\n".join(out)


def rewrite_strings(source):
    """Rewrites modules that strings and comments name."""
    out, lines = [], source.splitlines(keepends=True)
    edits = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            new = rename_words(token.string, ANY)
            if new != token.string:
                if new.endswith('"""') and token.type == tokenize.STRING:
                    new = wrapped(new)
                edits.append((token.start, token.end, new))
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for (r1, c1), (r2, c2), new in reversed(edits):
        a, b = starts[r1 - 1] + c1, starts[r2 - 1] + c2
        source = source[:a] + new + source[b:]
    return source


def main():
    for path in python:
        full = root / path
        old = full.read_text("utf-8")
        new = rewrite_strings(rewrite_imports(old))
        # What users import: engram.molar is a package that is renamed.
        for package, target in PACKAGES.items():
            if target and package.startswith("engram.") and target != package:
                new = re.sub(rf"(?<![\w.]){re.escape(package)}\b(?=\.)", target.removesuffix(".py"), new)
        if new != old:
            full.write_text(new, "utf-8")
    for path in files:
        full = root / path
        if path.endswith((".md", ".toml", ".yml", ".yaml", ".json", ".sh", ".cfg", ".pyi")) or path in ("Makefile", ".ci/run", "docker/Dockerfile"):
            old = full.read_text("utf-8")
            new = rename_words(old, ANY)
            if new != old:
                full.write_text(new, "utf-8")
    moves = DATA | {p: place(NEW[m], m in packages - AS_MODULES) for m, p in ours.items() if NEW.get(m)}
    assert len(set(moves.values())) == len(moves), [n for n in moves.values() if [*moves.values()].count(n) > 1]
    contents = {new: (root / old).read_bytes() for old, new in moves.items()}
    gone = [p for m, p in ours.items() if m in NEW and NEW[m] is None]
    gone += [p for p in files if p.endswith("/py.typed") and not p.startswith("engram/")]
    for old in [*moves, *gone]:
        (root / old).unlink()
    for new, content in contents.items():
        (root / new).parent.mkdir(parents=True, exist_ok=True)
        (root / new).write_bytes(content)


def finish():
    """Makes the packages that are new, and the links of the rooms that stand at the root."""
    for module in sorted({n.rpartition(".")[0] for n in NEW.values() if n}):
        path = root / place(module, True)
        if not path.exists():
            path.write_text(f'"""{ROOMS[module]}"""\n', "utf-8")
    for room in sorted(LINKED):
        link = root / "engram" / room
        if not link.exists():
            link.symlink_to(f"../{room}")
    for folder, _, _ in os.walk(root / "federation", topdown=False):
        if not os.listdir(folder):
            os.rmdir(folder)


if __name__ == "__main__":
    main()
    finish()
