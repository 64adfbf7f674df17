"""The command ``engram release``: begins a release, signs it at a site, and verifies it."""

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.options import RunName, State, option
from engram.cli.site_cli import state_of
from engram.link.keys import authority_fingerprint, read_certificates
from engram.runs.release import (
    RECORD,
    RELEASE,
    RunPart,
    SitePart,
    joined,
    read_release,
    verified_release,
    write_release,
)
from engram.runs.run_places import find_run
from engram.settings.errors import Refused, say
from engram.sites.release.run_part import begin_release
from engram.sites.release.site_part import sign_release

app = typer.Typer()


@app.command()
def release(
    run: RunName,
    federation: Annotated[
        Path | None, option("SERVER_FOLDER", "Begin a release of a run on this federation.")
    ] = None,
    requester: Annotated[
        str | None, option("TEXT", "Who asks for it, and for what project; with --federation.")
    ] = None,
    sbom: Annotated[
        Path | None, option("FILE", "Software bill of materials, to hash; with --federation.")
    ] = None,
    audit: Annotated[
        Path | None,
        option("FILE", "An audit.json of a run by these settings; default: the run's own."),
    ] = None,
    sign: Annotated[
        Path | None, option("CLIENT_FOLDER", "Add this site's part, signed by its key.")
    ] = None,
    join: Annotated[
        list[Path] | None, option("DIR", "Add the parts of a copy that a site has signed.")
    ] = None,
    verify: Annotated[
        Path | None, option("DIR", "Verify it by the ca.crt and registry in this folder.")
    ] = None,
    state: State = None,
) -> None:
    """Make, sign or verify the record of what a run's models rest on.

    RUN is a run's folder, or that of a release, which its sites get, or a release.json. Without an
    option the record is shown, and not verified.
    """
    chosen = [one for one in (federation, sign, join, verify) if one]
    if len(chosen) > 1:
        raise Refused("release takes one of --federation, --sign, --join and --verify")
    found = Path(run).parent if Path(run).name == RECORD else find_run(run)
    if federation:
        if not requester:
            raise Refused("--requester must say who asks for the release, and for what project")
        made = begin_release(found, federation, requester, sbom, audit)
        there = f"engram release {made.name} --sign CLIENT_FOLDER"
        say(f"{made}: begun; each site gets a copy, and signs it by {there}")
        return
    folder = found / RELEASE if (found / RELEASE).is_dir() else found
    if sign:
        part = sign_release(folder, sign, state_of(sign, state))
        _say_run(read_release(folder).run)
        _say_part(part)
        say(f"signed: {folder}; its coordinator joins the copies")
    elif join:
        whole = joined([read_release(each) for each in (folder, *join)])
        write_release(folder, whole)
        say(f"{folder}: signed by {len(whole.sites)} sites")
    else:
        _show(folder, verify)


def _show(folder: Path, keys: Path | None) -> None:
    found = verified_release(folder, keys) if keys else read_release(folder)
    _say_run(found.run)
    for site in found.sites:
        _say_part(site)
    if keys:
        (first, *_) = read_certificates(keys / "ca.crt")
        say(f"whole: signed by {len(found.sites)} sites; authority {authority_fingerprint(first)}")
    else:
        say("not verified; next: engram release with --sign CLIENT_FOLDER, or --verify DIR")


def _say_run(run: RunPart) -> None:
    settings = " ".join(f"{key}={value}" for key, value in run.settings.items())
    lines = {
        "training": f"{run.training}: {run.method}, {run.rounds} rounds",
        "asked by": run.requester,
        "settings": f"{settings or 'none'}; all others have their defaults",
        "privacy": run.guarantee or "none",
        "attacks": " ".join(run.audit) or "none were tried",
    }
    say(*(f"{name:10}{text}" for name, text in lines.items()))


def _say_part(site: SitePart) -> None:
    spent = f"; epsilon {site.privacy.epsilon:.4g}" if site.privacy else ""
    rows = " to ".join(map(str, site.rows))
    policy = f"policy {site.policy[:16]}"
    say(f"client-{site.client}: {site.rounds} rounds on {rows} rows{spent}; {policy}")
