"""Kubernetes manifests: rendered as `kubectl apply --kustomize` does, and what they let happen."""

import subprocess
import sys
from itertools import chain
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from engram.link.server.identity import init_federation
from tests.docker.compose import FOLDER, engram_calls, image, read_options

KUBECTL = Path(sys.executable).parent / "kubectl"
PARTS = ("server", "client")
part = pytest.mark.parametrize("part", PARTS)
FLEET, METRICS = 9092, 9100


def render(part):
    """The objects of a part, by kind."""
    done = subprocess.run(
        [KUBECTL, "kustomize", FOLDER / "kubernetes" / part], capture_output=True, check=True
    )
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}


RENDERED = {part: render(part) for part in PARTS}
PODS = {part: RENDERED[part]["StatefulSet"]["spec"]["template"]["spec"] for part in PARTS}


def calls(container):
    """The words of each call of `engram` in a container."""
    entrypoint = container.get("command", image()[0])
    return engram_calls({"entrypoint": entrypoint, "command": container.get("args", [])})


def containers(part):
    return {each["name"]: each for each in PODS[part]["containers"]}


def test_objects_are_as_kubernetes_defines_them():
    for each in chain.from_iterable(objects.values() for objects in RENDERED.values()):
        kubernetes_validate.validate(each, "1.37", strict=True)


@part
def test_a_pod_has_no_rights(part):
    pod = PODS[part]
    said = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 65532)
    assert pod["securityContext"].items() >= {"runAsNonRoot": True, **said}.items()
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    for each in chain(pod["initContainers"], pod["containers"]):
        assert each["image"] == "engram:latest"
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert each["resources"]["limits"].keys() == {"memory"}


@part
def test_there_is_one_pod_whose_labels_its_policy_and_service_select(part):
    objects = RENDERED[part]
    spec = objects["StatefulSet"]["spec"]
    assert spec["replicas"] == 1
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    if part == "server":
        assert objects["Service"]["spec"]["selector"].items() <= labels.items()
        assert objects["Service"]["metadata"]["name"] == spec["serviceName"]


def test_no_port_is_published_but_the_servers_and_nobody_calls_a_client():
    (port,) = RENDERED["server"]["Service"]["spec"]["ports"]
    assert port["port"] == FLEET
    named = {p["name"]: p["containerPort"] for p in containers("server")["server"]["ports"]}
    assert named[port["targetPort"]] == FLEET
    policy = RENDERED["server"]["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert [each["port"] for rule in policy["ingress"] for each in rule["ports"]] == ["fleet"]
    assert policy["egress"] == []
    policy = RENDERED["client"]["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == []
    ports = {each["port"] for rule in policy["egress"] for each in rule["ports"]}
    assert ports == {FLEET, 53}
    assert "ports" not in containers("client")["node"]


def test_containers_call_engram_as_it_wants_to_be_called():
    said = {name: calls(each) for part in PARTS for name, each in containers(part).items()}
    assert {name: [words[0] for words in each] for name, each in said.items()} == {
        "server": ["superlink"],
        "run": ["run"],
        "node": ["node"],
    }
    for words in chain.from_iterable(said.values()):
        read_options(words)


@pytest.mark.parametrize(("part", "name"), [("server", "server"), ("client", "node")])
def test_what_does_not_answer_is_started_again(part, name):
    container = containers(part)[name]
    (words,) = calls(container)
    assert words[words.index("--metrics-port") + 1] == str(METRICS)
    probe = container["livenessProbe"]["exec"]["command"]
    assert probe[:2] == ["python3", "-c"]
    assert f'"127.0.0.1", {METRICS}' in probe[2]
    # The probe's own words, on another port, of which nobody answers.
    refused = probe[2].replace(str(METRICS), "1")
    assert subprocess.run(
        [sys.executable, "-c", refused], check=False, capture_output=True
    ).returncode


@part
def test_what_is_written_is_in_a_volume(part):
    pod, objects = PODS[part], RENDERED[part]
    claims = {
        each["metadata"]["name"] for each in objects["StatefulSet"]["spec"]["volumeClaimTemplates"]
    }
    volumes = {each["name"] for each in pod["volumes"]} | claims
    for each in chain(pod["initContainers"], pod["containers"]):
        assert {mount["name"] for mount in each["volumeMounts"]} <= volumes
    assert claims == {"server": {"federation", "results"}, "client": {"state"}}[part]


@part
def test_keys_are_laid_where_engram_looks_for_them(part, tmp_path):
    init_federation(tmp_path / "fed", clients=1, hosts=[], superlink="superlink:9092", days=1)
    note = (FOLDER / "kubernetes" / part / "kustomization.yaml").read_text(encoding="utf-8")
    (pack,) = (line[1:].strip() for line in note.splitlines() if line.startswith("#     tar"))
    subprocess.run(["bash", "-c", pack], cwd=tmp_path, check=True)
    (init,) = PODS[part]["initContainers"]
    inside, keys = tmp_path / "inside", f"/keys/{part}.tar"
    inside.mkdir()
    here = {"/federation": str(inside), keys: str(tmp_path / f"{part}.tar")}
    subprocess.run([here.get(word, word) for word in init["command"]], check=True)
    (secret,) = (each["secret"] for each in PODS[part]["volumes"] if "secret" in each)
    assert f"create secret generic {secret['secretName']} --from-file={part}.tar" in note
    first, *_ = containers(part).values()
    ((_, folder, *_),) = calls(first)
    laid = inside / folder.removeprefix("/federation/")
    source = tmp_path / "fed" / {"server": "server", "client": "client-0"}[part]
    for path in (each for each in source.rglob("*") if each.is_file()):
        found = laid / path.relative_to(source)
        assert found.read_bytes() == path.read_bytes()
        assert found.stat().st_mode == path.stat().st_mode
