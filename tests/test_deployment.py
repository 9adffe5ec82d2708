"""The files to deploy with are right: what they name exists in the product, and what they run works."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from proxy import __version__
from proxy.demo.process import GatewayProcess
from proxy.headers import request_headers
from proxy.locality import is_local
from proxy.settings import Server, Upstream
from tests.cli.command import COMMAND, environ, run
from tests.fakes.upstream import FakeUpstream

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
CONFIGURATIONS = sorted(DEPLOY.rglob("*.toml"))
GATEWAYS = ("ullage", "gateway")
ADMIN_KEY = "an administrator's key"
# What an operator would set; every variable that a configuration refers to is one of these.
GIVEN = {
    "ULLAGE_SECRET": "a shared secret",
    "ULLAGE_ADMIN_KEY": ADMIN_KEY,
    "REDIS_URL": "redis://:password@valkey:6379/0",
    "S3_URL": "s3://bucket/ullage?region=eu-central-1",
}


def load(path: Path) -> Any:
    """Return what a YAML file holds."""
    return yaml.safe_load(path.read_text("utf-8"))


COMPOSE: dict[str, Any] = load(ROOT / "compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
POD: dict[str, Any] = load(KUBERNETES / "deployment.yaml")["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]
NGINX = (DEPLOY / "compose" / "nginx.conf").read_text("utf-8")


def instructions(name: str) -> list[str]:
    """Return the arguments of all instructions of that name in the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [line.partition(" ")[2].strip() for line in lines if line.startswith(f"{name} ")]


def unit() -> dict[str, list[str]]:
    """Return the values of every key of the systemd unit, in their order."""
    values: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / "ullage.service").read_text("utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            values.setdefault(key, []).append(value)
    return values


def script_of(service: dict[str, Any]) -> str | None:
    """Return the shell script that a service starts with, as the shell gets it; None if it starts otherwise."""
    entrypoint = service.get("entrypoint", [])
    return entrypoint[2].replace("$$", "$") if entrypoint[:1] == ["/bin/sh"] else None


def drain_seconds(configuration: Path) -> float:
    """Return how long a gateway with that configuration lets requests finish."""
    server = tomllib.loads(configuration.read_text("utf-8")).get("server", {})
    return float(server.get("drain_seconds", Server().drain_seconds))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Give a gateway that runs and has an administrator's key."""
    folder = tmp_path_factory.mktemp("gateway")
    config = folder / "keyed.toml"
    config.write_text(f'[server]\nadmin_key = "{ADMIN_KEY}"\n', "utf-8")
    with FakeUpstream() as upstream, GatewayProcess(folder, upstream.url, "--config", str(config)) as process:
        yield process


def status(url: str, credential: str | None = None) -> int:
    """Return the status that a GET is answered with."""
    headers = {} if credential is None else {"authorization": credential}
    return httpx.get(url, headers=headers, trust_env=False, timeout=10).status_code


# -- configurations


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_configuration_is_accepted(path: Path, tmp_path: Path) -> None:
    """`ullage config check` has nothing to say against it, not even a doubt."""
    wanted = set(re.findall(r'"env:(\w+)"', path.read_text("utf-8")))
    assert wanted <= set(GIVEN)
    done = run(tmp_path, "config", "check", "--config", str(path), **{name: GIVEN[name] for name in wanted})
    assert (done.returncode, done.stderr) == (0, "")


# -- what is asked over HTTP


def test_every_path_that_is_asked_exists(gateway: GatewayProcess) -> None:
    """Probes and health checks are answered with 200 by a gateway that is well."""
    probes = [probe["httpGet"] for name, probe in CONTAINER.items() if name.endswith("Probe")]
    assert len(probes) == 3
    paths = {probe["path"] for probe in probes}
    paths |= set(re.findall(r":4410(/\w+)", json.dumps([service.get("healthcheck") for service in SERVICES.values()])))
    assert paths == {"/livez", "/readyz"}
    assert {path: status(gateway.url + path) for path in paths} == dict.fromkeys(paths, 200)


def test_the_health_check_of_the_image_tells_a_gateway_from_none(gateway: GatewayProcess) -> None:
    """It ends with 0 while one is ready on the port, else not."""
    [check] = instructions("HEALTHCHECK")
    command: list[str] = json.loads(check.partition("CMD")[2])
    assert command[0] == "python"
    for port, is_well in ((gateway.port, True), (1, False)):
        given = {"ULLAGE_PORT": str(port), "PATH": os.defpath}
        done = subprocess.run([sys.executable, *command[1:]], env=given, capture_output=True, check=False)
        assert (done.returncode == 0) is is_well


def test_ports_are_those_that_the_gateway_listens_on() -> None:
    """Every file names the default port."""
    port = Server().port
    assert instructions("EXPOSE") == [str(port)]
    assert SERVICES["ullage"]["ports"][0].endswith(f":{port}")
    assert [p["containerPort"] for p in CONTAINER["ports"] if p["name"] == "http"] == [port]
    assert f"server gateway:{port} resolve" in NGINX
    listened = re.findall(r"listen (\d+);", NGINX)
    assert [SERVICES["balancer"]["ports"][0].rpartition(":")[2]] == listened


def test_the_balancer_lets_streams_pass() -> None:
    """It holds nothing back and gives up later than the gateway."""
    directives = dict(re.findall(r"^\s*(proxy_\w+) ([^;]+);", NGINX, re.MULTILINE))
    assert (directives["proxy_buffering"], directives["proxy_request_buffering"]) == ("off", "off")
    assert float(directives["proxy_read_timeout"].removesuffix("s")) > Upstream().timeout.read
    assert "client_max_body_size 0;" in NGINX, "the gateway decides how large a body may be"


def test_whom_the_balancer_forwards_is_no_local_program() -> None:
    """It sends a field by which the gateway knows, and which goes no further."""
    sent = dict(re.findall(r"proxy_set_header (\S+) \"?([^;\"]+)", NGINX))
    headers = [
        (b"host", b"127.0.0.1:4410"),
        (b"via", sent["Via"].encode()),
        (b"connection", sent["Connection"].encode()),
    ]
    assert not is_local("127.0.0.1", headers)
    assert request_headers(headers) == []


# -- the image


def test_the_image_runs_as_nobody_in_particular() -> None:
    """Its user is a number, which a read-only root and `runAsNonRoot` need; all agree on it."""
    user, _, group = instructions("USER")[-1].partition(":")
    assert int(user) > 0
    security = POD["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (int(user), int(group), int(group))
    assert f"uid={user},gid={group}" in SERVICES["gateway"]["tmpfs"][1]
    assert f"--owner {user} --group {group}" in " ".join(instructions("RUN"))


def test_the_image_is_made_of_pinned_parts() -> None:
    """One base with its full version, dependencies from the lock, and our own version on the label."""
    bases = [base.split()[0] for base in instructions("FROM")]
    stages = {base.split()[-1] for base in instructions("FROM")}
    assert [base for base in bases if base not in stages] == bases[:1]
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases[0])
    assert "--constraint requirements.lock" in " ".join(instructions("RUN"))
    assert f'image.version="{__version__}"' in instructions("LABEL")[0]
    assert instructions("STOPSIGNAL") == ["SIGTERM"]


def test_the_builder_sees_what_it_copies() -> None:
    """What is copied from the folder is there and not left out by .dockerignore."""
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    copied = {source for copy in instructions("COPY") if not copy.startswith("--from") for source in copy.split()[:-1]}
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_image_can_be_built(tmp_path: Path) -> None:
    """The command of the Dockerfile, run by hand on what it copies, makes a command that works without pip."""
    probe = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path), "hatchling"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("no package index is reached from here")
    for copy in instructions("COPY")[:3]:
        for source in copy.split()[:-1]:
            copies = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copies(ROOT / source, tmp_path / source)
    made = tmp_path / "made"
    command = instructions("RUN")[0].replace("/opt/ullage", str(made))
    command = re.sub(r"\bpip (?=--python)", f"{sys.executable} -m pip ", command)
    command = command.replace("python -m venv", f"{sys.executable} -m venv")
    done = subprocess.run(["sh", "-ec", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shutil.copy(DEPLOY / "ullage.toml", tmp_path)
    for arguments, said in ((["--version"], __version__), (["config", "check"], "fine")):
        given = {"PATH": f"{made / 'bin'}:{os.defpath}"}
        out = subprocess.run(
            [made / "bin" / "ullage", *arguments], cwd=tmp_path, env=given, capture_output=True, check=True
        )
        assert said in out.stdout.decode()
    assert not (made / "bin" / "pip").exists()
    for package in ("obstore", "cryptography", "uvloop"):
        subprocess.run([made / "bin" / "python", "-c", f"import {package}"], check=True)


# -- compose


def test_profiles_hold_what_they_promise() -> None:
    """One gateway without a profile, three with a balancer and a store in `scale`."""
    profiles: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        profiles.setdefault(" ".join(service.get("profiles", [])), set()).add(name)
    assert profiles == {
        "": {"ullage"},
        "scale": {"gateway", "balancer", "valkey", "s3", "s3-init"},
    }
    assert SERVICES["gateway"]["deploy"]["replicas"] == 3
    flags = SERVICES["valkey"]["command"]
    assert [flags[flags.index(flag) + 1] for flag in ("--appendonly", "--maxmemory-policy")] == ["yes", "noeviction"]


@pytest.mark.parametrize("name", SERVICES)
def test_services_name_what_exists(name: str) -> None:
    """Other services, their health, volumes, files and networks."""
    service = SERVICES[name]
    for other, wanted in service.get("depends_on", {}).items():
        assert set(SERVICES[other].get("profiles", [])) <= set(service.get("profiles", []))
        if wanted["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other] or "build" in SERVICES[other]
        else:
            assert (wanted["condition"], SERVICES[other]["restart"]) == ("service_completed_successfully", "no")
    for source in (volume.split(":")[0] for volume in service.get("volumes", [])):
        assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"]
    assert set(service["networks"]) <= set(COMPOSE["networks"])


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_pinned_and_confined(name: str) -> None:
    """No image of an unknown version; nothing is written but to volumes, and no privilege is kept or gained."""
    service = SERVICES[name]
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+(\.\d+)?(-[\w.]+)?", service["image"])
    assert ("build" in service) is (service["image"] == f"ullage:{__version__}")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    for published in service.get("ports", []):
        assert re.fullmatch(r"\$\{\w+:-127\.0\.0\.1:\d+\}:\d+", published), "reachable from elsewhere by default"


def test_published_ports_differ() -> None:
    """All services can run side by side."""
    published = [port.split(":")[-2] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == len(set(published)) == 2


def test_variables_can_be_left_out_and_are_explained() -> None:
    """A profile asks for what it needs when it starts, so that others start without it; the page names them all."""
    text = (ROOT / "compose.yaml").read_text("utf-8")
    used = re.findall(r"(?<!\$)\$\{(\w+)(:-)?", text)
    assert [name for name, default in used if not default] == []
    page = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    assert [name for name, _ in used if not re.search(rf"\b{name}\b", page)] == []


def test_gateways_get_the_variables_that_their_configuration_names(tmp_path: Path) -> None:
    """None is missing, and all of ours are settings."""
    for name, path in (("ullage", "ullage.toml"), ("gateway", "compose/scale.toml")):
        given = dict.fromkeys(SERVICES[name]["environment"], "http://upstream.example/v1") | GIVEN
        named = set(re.findall(r'"env:(\w+)"', (DEPLOY / path).read_text("utf-8")))
        assert named <= set(SERVICES[name]["environment"])
        given = {key: "balanced" if key == "ULLAGE_PRESET" else value for key, value in given.items()}
        done = run(tmp_path, "config", "check", "--config", str(DEPLOY / path), **given)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if script_of(service)])
def test_services_refuse_to_start_without_their_keys(name: str, tmp_path: Path) -> None:
    """The script that a service starts with ends at once and names the variable."""
    script, service = script_of(SERVICES[name]), SERVICES[name]
    keys = [key for key, value in service["environment"].items() if value.endswith(":-}")]
    assert script
    assert keys
    given = {"PATH": str(tmp_path)} | dict.fromkeys(keys, "")  # nothing that it would start is found
    done = subprocess.run(
        ["/bin/sh", "-euc", f"umask() {{ :; }}; {script}"], env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert re.search(r"set (it|\w+) in \.env", done.stderr), done.stderr


@pytest.mark.parametrize("name", GATEWAYS)
def test_gateways_are_not_killed_before_they_have_drained(name: str) -> None:
    """Compose waits longer than the gateway."""
    configuration = DEPLOY / ("compose/scale.toml" if name == "gateway" else "ullage.toml")
    assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > drain_seconds(configuration)


# -- Kubernetes


def test_pods_are_confined_and_not_misled() -> None:
    """No token, no privilege, a read-only root, and no variables of services, which would be taken for settings."""
    assert POD["automountServiceAccountToken"] is False
    assert POD["enableServiceLinks"] is False
    assert POD["securityContext"]["runAsNonRoot"] is True
    security = CONTAINER["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == {volume["name"] for volume in POD["volumes"]}


def test_pods_are_not_killed_before_they_have_drained() -> None:
    """The grace period begins before preStop does."""
    pause = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert POD["terminationGracePeriodSeconds"] > pause + drain_seconds(KUBERNETES / "ullage.toml")


def test_objects_refer_to_each_other() -> None:
    """Service, budget and autoscaler mean the pods of the Deployment, which has no number of its own to fight over."""
    deployment, service, budget, autoscaler = (
        load(KUBERNETES / f"{name}.yaml") for name in ("deployment", "service", "disruption-budget", "autoscaler")
    )
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"]]
    selectors += [budget["spec"]["selector"]["matchLabels"]]
    assert all(selector.items() <= labels.items() for selector in selectors)
    target = autoscaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (deployment["kind"], deployment["metadata"]["name"])
    assert autoscaler["spec"]["metrics"][0]["resource"]["name"] == "cpu"
    assert autoscaler["spec"]["minReplicas"] > budget["spec"]["maxUnavailable"]
    assert "replicas" not in deployment["spec"]
    assert service["spec"]["ports"][0]["targetPort"] in {port["name"] for port in CONTAINER["ports"]}


def test_the_kustomization_makes_what_pods_take() -> None:
    """Files, configuration and secret under the names that the Deployment uses; the image in our version."""
    made = load(KUBERNETES / "kustomization.yaml")
    assert all((KUBERNETES / name).is_file() for name in made["resources"])
    [configuration], [secret], [image] = made["configMapGenerator"], made["secretGenerator"], made["images"]
    assert configuration["files"] == ["ullage.toml"]
    assert {volume["configMap"]["name"] for volume in POD["volumes"] if "configMap" in volume} == {
        configuration["name"]
    }
    assert [source["secretRef"]["name"] for source in CONTAINER["envFrom"]] == [secret["name"]]
    assert (image["name"], image["newTag"]) == (CONTAINER["image"], __version__)
    example = dict(
        line.split("=", 1)
        for line in (KUBERNETES / f"{secret['envs'][0]}.example").read_text("utf-8").splitlines()
        if not line.startswith("#")
    )
    assert set(re.findall(r'"env:(\w+)"', (KUBERNETES / "ullage.toml").read_text("utf-8"))) <= set(example)


def test_kubectl_understands_the_folder(tmp_path: Path) -> None:
    """It renders, once the secret is written."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    folder = shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    command = ["kubectl", "kustomize", str(folder)]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0, "it went out without its secret"
    (folder / "secret.env.example").rename(folder / "secret.env")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kinds = sorted(part["kind"] for part in yaml.safe_load_all(done.stdout))
    assert kinds == sorted(
        ["ConfigMap", "Secret", "Service", "Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler"]
    )
    assert f"image: registry.example.com/ullage:{__version__}" in done.stdout


# -- systemd


def test_the_unit_reloads_with_commands_that_exist(tmp_path: Path) -> None:
    """Its check accepts the file that it is installed with and ends a reload of a wrong one."""
    check = shlex.split(unit()["ExecReload"][0])[1:]
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[server]\nprot = 1\n")
    for path, code in ((DEPLOY / "ullage.toml", 0), (wrong, 2)):
        arguments = [str(path) if argument == "/etc/ullage/ullage.toml" else argument for argument in check]
        assert run(tmp_path, *arguments).returncode == code
    assert unit()["ExecReload"][1].split()[1:] == ["-HUP", "$MAINPID"]


def test_the_unit_starts_a_gateway_and_ends_it_in_time(tmp_path: Path) -> None:
    """Its command is one; wrong configuration ends with the code after which nothing is tried again."""
    start = shlex.split(unit()["ExecStart"][0])[1:]
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[server]\nprot = 1\n")
    arguments = [str(wrong) if argument == "/etc/ullage/ullage.toml" else argument for argument in start]
    done = subprocess.run([*COMMAND, *arguments], env=environ(), cwd=tmp_path, capture_output=True, check=False)
    assert [str(done.returncode)] == unit()["RestartPreventExitStatus"]
    assert b"server.prot" in done.stderr
    assert float(unit()["TimeoutStopSec"][0]) > drain_seconds(DEPLOY / "ullage.toml")
    url: str = tomllib.loads((DEPLOY / "ullage.toml").read_text("utf-8"))["store"]["url"]
    assert url.startswith(f"sqlite:////var/lib/{unit()['StateDirectory'][0]}/")


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """No key is unknown to it."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here")
    text = (DEPLOY / "systemd" / "ullage.service").read_text("utf-8")
    path = tmp_path / "ullage.service"
    path.write_text(text.replace("/opt/ullage/bin/ullage", "/bin/true"), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# -- the page


def test_the_page_names_files_that_exist() -> None:
    """Every path in it is one of ours."""
    page = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    named = re.findall(r"\bdeploy/[\w./-]*\w", page)
    assert len(set(named)) > 4
    assert [name for name in named if not (ROOT / name).exists()] == []
