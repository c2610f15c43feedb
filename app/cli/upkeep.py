"""`doctor` and `scrub`: is the installation well, and what it keeps?"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from app.cli.connection import Failed, Refused, Running, Server, Target
from app.cli.output import on_server, printable, prints, size
from app.cli.repositories import Bytes

if TYPE_CHECKING:
    from app.http.doctor import Finding
    from config import Settings

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
Report = dict[str, Any]


@click.command()
@prints
@click.pass_obj
def doctor(target: Target, as_json: bool) -> None:
    """Say what is wrong with the installation, and what to do about it.

    Works with a running server, with none, and without PostgreSQL. Exit code 1 when anything is FAIL. Changes nothing.
    """
    report = _report(target)
    if as_json:
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_report(report)
    sys.exit(1 if report["status"] == "fail" else 0)


def _report(target: Target) -> Report:
    from app.http.doctor import fail
    from config.settings import SettingError, Settings

    try:
        settings = Settings.from_environment()
    except SettingError as error:
        return _made([fail("configuration", str(error), "no command and no server starts before it is corrected")])
    try:
        running = target.running(settings)
        if running is not None:
            return _of_server(running, settings)
    except Refused as error:
        advice = "use the token of an administrator, with all permissions and for all repositories"
        return _made([fail("server", f"it runs, and refuses: {error}", advice)])
    except Failed as error:
        return _made([fail("server", str(error), "start it, or correct the address or token; on its own machine none is needed")])
    return _of_stopped(settings)


def _of_server(running: Running, settings: Settings) -> Report:
    from app.http.doctor import ok
    from app.http.doctor.configuration import drift

    answer = running.server.get("doctor")
    differing = drift(settings, os.environ, answer["settings"]) if running.local else ()
    report = _made([ok("server", f"runs and answers at {running.url}"), *differing])
    found = report["checks"] + answer["checks"]
    return {"status": max(report["status"], answer["status"], key=list(_COLOURS).index), "checks": found, "settings": answer["settings"]}


def _of_stopped(settings: Settings) -> Report:
    from app.http.doctor import examine_stopped, ok

    return _made([ok("server", f"none runs for {settings.data_dir.resolve()}"), *examine_stopped(settings)])


def _made(findings: Sequence[Finding]) -> Report:
    from app.http.doctor import worst

    return {"status": worst(findings), "checks": [asdict(each) for each in findings]}


def _print_report(report: Mapping[str, Any]) -> None:
    width = max(len(each["check"]) for each in report["checks"])
    for each in report["checks"]:
        status = click.style(each["status"].upper().ljust(4), _COLOURS.get(each["status"]))
        click.echo(f"{status}  {each['check'].ljust(width)}  {printable(each['message'])}")
        for line in textwrap.wrap(printable(each["advice"]), 110):
            click.echo(f"{' ' * (width + 8)}{line}")


def _digest(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if not re.fullmatch("[0-9a-f]{0,64}", value):
        raise click.BadParameter("this is no digest, nor the beginning of one")
    return value


@click.command()
@click.option("--from", "start", metavar="DIGEST", default="", callback=_digest, help="Begin at this digest, or the beginning of one.")
@click.option("--rate", type=Bytes(), default="64M", show_default=True, help="Most bytes to read in a second.")
@prints
@on_server
def scrub(server: Server, start: str, rate: int, as_json: bool) -> None:
    """Hash all stored bytes again and report what is missing or damaged, with the artifacts that need it.

    Deletes nothing, and may be stopped at any time: it says how to go on. Exit code 1 when anything is damaged.
    """
    done: Report = {"blobs": 0, "bytes": 0, "damages": [], "next": start}
    try:
        while done["next"] is not None:
            _scrub_on(server, rate, done, as_json)
    except (KeyboardInterrupt, Failed) as error:
        words = str(error) if isinstance(error, Failed) else "stopped"
        # Whoever goes on later will not hear of it again.
        _print_scrubbed(done, as_json)
        raise Failed(f"{words}; go on with: arkvory scrub --from {done['next']}" if done["next"] else words) from None
    _print_scrubbed(done, as_json)
    sys.exit(1 if done["damages"] else 0)


def _scrub_on(server: Server, rate: int, done: Report, as_json: bool) -> None:
    step = server.call("POST", "scrub", body={"from": done["next"], "bytes_per_second": rate})
    for name in ("blobs", "bytes", "damages"):
        done[name] += step[name]
    done["next"] = step["next"]
    for damage in () if as_json else step["damages"]:
        _print_damage(damage)
    if sys.stderr.isatty():
        # Digests lie evenly, so that the present one says how far it is.
        part = int(done["next"][:8], 16) / 2**32 if done["next"] else 1.0
        click.echo(f"\r{part:4.0%}  {done['blobs']} blobs, {size(done['bytes'])}  ", nl=False, err=True)
        if done["next"] is None:
            click.echo(err=True)


def _print_scrubbed(done: Report, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(done, indent=2, ensure_ascii=False))
    else:
        click.echo(f"Checked {done['blobs']} blobs, {size(done['bytes'])}: {len(done['damages']) or 'none'} damaged.")


def _print_damage(damage: Mapping[str, Any]) -> None:
    click.echo(f"{damage['problem'].upper()}  {damage['digest']}  {printable(damage['detail'])}; {damage['uses']} artifacts need it")
    for use in damage["artifacts"]:
        click.echo(f"    {use['repository']}  {printable(use['path'])}")


COMMANDS = (doctor, scrub)
