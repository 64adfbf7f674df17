"""What can be known of images and compose files without building or starting any."""

import mmap
import os
import re
import runpy
import shlex
import shutil
import socket
import time
import tomllib
from importlib.machinery import ExtensionFileLoader
from importlib.metadata import requires
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import crossplane
import jsonschema
import pathspec
import pytest
from check_jsonschema.builtin_schemas import get_builtin_schema
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from psutil import _psutil_linux

from engram.settings.fingerprint import source_root
from tests.docker.compose import (
    FOLDER,
    Processes,
    command_line,
    engram_calls,
    image,
    instructions,
    load,
    mounts,
    read_options,
    starts_again,
)
from tests.samples import entry
from tests.source import ROOMS

PROJECT = load("compose.yml")
SERVICES = PROJECT["services"]
CLIENTS = [name for name in SERVICES if name.startswith("client-")]
USER = "65532:65532"
FLEET = 9092


# --- Confinement -------------------------------------------------------------------------------


def test_a_service_has_no_rights_and_bounded_means():
    for name, service in [*SERVICES.items(), *load("compose.flower.yml")["services"].items()]:
        with entry(name):
            assert service["user"] == USER
            assert service["read_only"]
            assert service["tmpfs"][0].startswith("/tmp:size=")
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory", "pids"}
            more = {"privileged", "cap_add", "pid", "ipc", "devices", "env_file"}
            assert not service.keys() & more


# --- What is started again ---------------------------------------------------------------------

OK, FAILED, REFUSED, TERMINATED, KILLED = 0, 1, 2, 143, 137


@pytest.mark.parametrize("name", ["server", "run", *CLIENTS])
def test_what_is_to_be_there_is_started_again_by_itself_and_after_a_refusal_not_at_once(name):
    # A client that is stopped in good order, as when the machine is switched off, ends with 0.
    for status in (OK, FAILED, REFUSED, TERMINATED, KILLED):
        assert starts_again(SERVICES[name], status)
    ((first, *_),) = engram_calls(SERVICES[name])
    # Which wait, see tests/cli/test_cli_refusals.py; or the service's own script does.
    assert first in {"node", "superlink"} or "sleep 60" in command_line(SERVICES[name])[2]
    assert int(image()[1]["ENGRAM_REFUSAL_PAUSE"]) >= 60
    # Docker Engine before 29.0 starts all at once, and does not try again who found no network.
    assert SERVICES[name].get("network_mode", "none") == "none"
    assert not SERVICES[name].keys() & {"links", "pid", "ipc", "volumes_from"}


def test_what_init_refuses_is_said_at_once():
    assert not starts_again(SERVICES["init"], REFUSED)


# --- Ports -------------------------------------------------------------------------------------


def test_no_port_is_published_but_the_servers_on_the_loopback_unless_told():
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert [port["target"] for port in published] == [FLEET]
    assert dict(instructions())["EXPOSE"] == str(FLEET)
    assert all(service.get("network_mode") != "host" for service in SERVICES.values())
    (port,) = SERVICES["server"]["ports"]
    assert port["host_ip"] == "127.0.0.1"


def test_the_base_image_is_named_by_digest():
    (base,) = re.findall(r"^ARG BASE_IMAGE=(.*)$", (FOLDER / "Dockerfile").read_text(), re.M)
    assert re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", base)
    assert SERVICES["init"]["build"]["args"]["BASE_IMAGE"] == base


def test_packages_are_held_to_checksums_and_none_is_missing():
    """All that the project depends on, but PyTorch, and what the image goes without."""
    lines = (FOLDER / "requirements.txt").read_text().splitlines()
    pinned = {}
    for line in (line for line in lines if not line.startswith("#")):
        pin, *hashes = line.split(" ")
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)
        name, _, version = pin.partition("==")
        pinned[canonicalize_name(name)] = version
    constraints = (source_root() / "constraints.txt").read_text().splitlines()
    exact = dict(line.split("==") for line in constraints if "==" in line and line[0] != "#")
    exact = {canonicalize_name(name): version for name, version in exact.items()}
    assert pinned == {name: exact.get(name, pinned[name]) for name in pinned}
    assert pinned.keys() - exact.keys() == {"setuptools"}  # which builds the project
    project = tomllib.loads((source_root() / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["operate"], *extras["privacy"]]
    needed, aside = set(), {"torch", "torchvision", "ray", "uv"}
    left = [(Requirement(text), "") for text in wanted]
    while left:
        one, extra = left.pop()
        name = canonicalize_name(one.name)
        if (one.marker and not one.marker.evaluate({"extra": extra})) or name in aside:
            continue
        if (name, *sorted(one.extras)) in needed:
            continue
        needed.add((name, *sorted(one.extras)))
        for text in requires(name) or ():
            left += [(Requirement(text), each) for each in ("", *one.extras)]
    assert {name for name, *_ in needed} <= pinned.keys()


def test_who_needs_no_network_has_none():
    without = {name for name in SERVICES if SERVICES[name].get("network_mode") == "none"}
    assert without == {"init", "run"}


# --- Volumes -----------------------------------------------------------------------------------


def test_volumes_are_the_declared_ones():
    used = {source for service in SERVICES.values() for source, *_ in mounts(service)}
    assert used == PROJECT["volumes"].keys()  # no folder of the host's, either


def test_a_new_volume_belongs_to_the_user():
    # Docker gives it the owner of the image's folder at that place; a part of a volume has an
    # owner already, and must not be filled from the image: it need not be there yet.
    made = re.search(r"install --directory --owner=(\d+) --group=(\d+) --mode=0700 (.*)", _runs())
    assert f"{made[1]}:{made[2]}" == USER == dict(instructions())["USER"]
    for mount in (each for service in SERVICES.values() for each in service.get("volumes", [])):
        if isinstance(mount, str):
            assert mount.split(":")[1] in made[3].split()
        else:
            assert mount["volume"]["nocopy"]
            assert mount["volume"]["subpath"]


def test_a_service_sees_its_own_part_of_the_federation_and_its_memory_only():
    parts = {n: [mount[1:] for mount in _mounts(n) if mount[0] == "federation"] for n in SERVICES}
    server = ("engram/server", "/federation/engram/server", True)  # and the socket in it
    both = {"server": [server], "run": [server]}
    assert parts == {"init": [("", "/federation", True)]} | both | {
        name: [(f"engram/{name}", f"/federation/engram/{name}", False)] for name in CLIENTS
    }
    for name in CLIENTS:
        memory = f"memory-{name.removeprefix('client-')}"
        assert (memory, "", "/state", True) in _mounts(name)
        assert [n for n in SERVICES for source, *_ in _mounts(n) if source == memory] == [name]


def test_init_makes_what_the_others_mount():
    (words,) = engram_calls(SERVICES["init"])
    folder = words[words.index("init-federation") + 1]
    assert int(words[words.index("--clients") + 1]) == len(CLIENTS)
    made = {f"{folder}/{part}" for part in ("server", *CLIENTS)}
    parts = [mount for name in SERVICES for mount in _mounts(name) if mount[1]]
    assert {target for _, _, target, _ in parts} == made
    assert all(f"/federation/{inside}" == target for _, inside, target, _ in parts)


def test_results_are_kept():
    assert ("results", "", "/results", True) in _mounts("run")
    (words,) = engram_calls(SERVICES["run"])
    assert words[words.index("--out") + 1].startswith("/results/")


def _mounts(name):
    return list(mounts(SERVICES[name]))


def _runs():
    return "\n".join(rest for name, rest in instructions() if name == "RUN")


# --- Overlay -----------------------------------------------------------------------------------


def test_a_compose_file_and_its_overlay_make_a_valid_one():
    schema = get_builtin_schema("vendor.compose-spec")
    for project in (PROJECT, load("compose.yml", "compose.gpu.yml")):
        jsonschema.validate(project, schema)


def test_the_overlay_gives_clients_a_gpu_and_changes_nothing_else():
    over = load("compose.yml", "compose.gpu.yml", **{f"GPU_{n}": f"{7 + n}" for n in range(3)})
    assert over["services"].keys() == SERVICES.keys()
    for number, name in enumerate(CLIENTS):
        plain, changed = SERVICES[name], over["services"][name]
        assert changed["command"] == [*plain["command"], "--set", "device=cuda"]
        (device,) = changed["deploy"]["resources"]["reservations"]["devices"]
        gpu = {"driver": "nvidia", "device_ids": [f"{7 + number}"], "capabilities": ["gpu"]}
        assert device == gpu
        assert changed["deploy"]["resources"]["limits"].keys() == {"cpus", "memory", "pids"}
        for other in ("command", "deploy", "environment"):
            plain, changed = plain | {other: None}, changed | {other: None}
        assert changed == plain


# --- Entry commands ----------------------------------------------------------------------------


def test_services_call_engram_as_it_wants_to_be_called():
    for name, service in SERVICES.items():
        with entry(name):
            calls = engram_calls(service)
            assert calls
            for words in calls:
                read_options(words)


@pytest.mark.parametrize("name", ["server", CLIENTS[0]])
def test_health(name, tmp_path):
    here = Processes(tmp_path, PROJECT)
    assert not here.healthy(name)
    if name == "server":
        with socket.create_server(("127.0.0.1", here.ports[FLEET])):
            assert here.healthy(name)
    else:
        heartbeat = here.path(name, "/state/alive")
        heartbeat.touch()
        assert here.healthy(name)
        os.utime(heartbeat, (time.time() - 130,) * 2)
    assert not here.healthy(name)


# --- Image -------------------------------------------------------------------------------------


def test_the_image_is_made_of_the_source_and_nothing_else():
    stage = instructions(0)
    copied = {word for name, rest in stage if name == "COPY" for word in rest.split()[:-1]}
    bound = set(re.findall(r"type=bind,source=([^,]+)", " ".join(rest for _, rest in stage)))
    assert {path for path in copied if (source_root() / path).is_dir()} == {*ROOMS}
    ignored = (source_root() / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == copied | bound


def test_a_configuration_for_pip_is_there_for_the_build_alone():
    assert SERVICES["init"]["build"]["secrets"] == ["pip"]
    assert load("compose.yml")["secrets"]["pip"]["file"] == "/dev/null"  # none is needed
    assert load("compose.yml", PIP_CONF="mine.conf")["secrets"]["pip"]["file"] == "mine.conf"
    pips = [rest for name, rest in instructions(0) if name == "RUN" and "pip install" in rest]
    assert pips
    for rest in pips:  # the user's, not /etc/pip.conf, which an empty one would hide
        assert "--mount=type=secret,id=pip,target=/root/.config/pip/pip.conf" in rest
    assert not any(name in {"ARG", "ENV"} and "PIP_CONF" in rest for name, rest in instructions(0))


def test_the_image_says_what_containers_need():
    entrypoint, environment, _ = image()
    assert entrypoint == ["engram"]
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_HOME"].startswith("/tmp/")  # the one place that can be written


def test_an_image_is_made_with_the_torch_that_was_asked_for(tmp_path):
    about = tmp_path / "torch" / "version.py"
    about.parent.mkdir()
    complaint = runpy.run_path(str(FOLDER / "check_torch.py"))["complaint"]
    for cuda, fine in ((None, {"any", "cpu"}), ("13.0", {"any", "cuda"})):
        about.write_text(f"__version__ = '2.13.0'\ncuda = {cuda!r}\n")
        for wanted in ("any", "cpu", "cuda", "gpu"):
            said = complaint(wanted, tmp_path)
            assert (said is None) == (wanted in fine)
            assert wanted in fine or wanted in said


def test_libraries_work_without_their_symbol_tables(tmp_path):
    path = Path(shutil.copy(_psutil_linux.__file__, tmp_path))
    before = path.stat().st_size
    runpy.run_path(str(FOLDER / "cut_symbols.py"))["main"](tmp_path)
    assert path.stat().st_size < before
    loader = ExtensionFileLoader("_psutil_linux", str(path))
    module = module_from_spec(spec_from_loader("_psutil_linux", loader))
    assert module.getpagesize() == mmap.PAGESIZE


# --- Documentation -----------------------------------------------------------------------------


def test_what_the_documented_commands_leave_here_is_not_committed():
    ignored = (source_root() / ".gitignore").read_text().splitlines()
    spec = pathspec.GitIgnoreSpec.from_lines(ignored)
    for path in ("results/config.json", "client-3.tar", "client-3/client.key", "memory-3/alive"):
        assert spec.match_file(f"docker/{path}"), path
    assert not spec.match_file("docker/compose.yml")


def test_documented_commands_name_services_that_are_there():
    text = (source_root() / "docs" / "deployment.md").read_text(encoding="utf-8")
    words = [line.split() for line in re.findall(r"^\$ docker compose (.*)$", text, re.MULTILINE)]
    named = {each[-1 if each[0] == "logs" else 1] for each in words if each[0] in {"logs", "exec"}}
    named |= {each[1].split(":")[0] for each in words if each[0] == "cp"}
    assert named == {"server", "run"}
    assert named <= SERVICES.keys()


def test_a_client_on_another_machine_has_its_folders_and_comes_back():
    text = (source_root() / "docs" / "deployment.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```console\n([^`]*docker run [^`]*)```", text)
    before, _, command = block.partition("$ docker run ")
    words = shlex.split(command.replace("\\\n", " "))
    for mount in (words[i + 1] for i, word in enumerate(words) if word == "--volume"):
        folder = mount.split(":")[0].removeprefix("./")
        # Docker would make a missing one, which is then root's.
        assert re.search(rf"(mkdir|tar -xf) {folder}\b", before), folder
    assert "--init" in words
    assert starts_again({"restart": words[words.index("--restart") + 1]}, OK)
    read_options(words[words.index("engram") + 1 :])


# --- nginx -------------------------------------------------------------------------------------


def test_nginx_passes_the_servers_port_on_and_ends_no_tls():
    parsed = crossplane.parse(str(FOLDER / "nginx.conf"), strict=True)
    assert parsed["status"] == "ok", parsed["errors"]
    (config,) = parsed["config"]
    assert [each["directive"] for each in config["parsed"] if "block" in each] == [
        "events",
        "stream",
    ]
    assert _find(config["parsed"], "listen") == [[str(FLEET)]]


def _find(block, directive):
    """The arguments of every such directive in a block, and in the blocks in it."""
    found = []
    for each in block:
        if each["directive"] == directive:
            found.append(each["args"])
        found += _find(each.get("block", []), directive)
    return found
