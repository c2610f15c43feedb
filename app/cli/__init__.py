"""`arkvory`: starting the server, and a client of its management API.

    serve, worker, db          processes and tables             (processes.py)
    repo, rule, artifact...    calls of the management API      (repositories.py, artifacts.py, people.py, roles.py, installation.py)
    doctor, scrub              is all well?                     (upkeep.py)
    cluster                    who works together?              (cluster.py)
    jobs                       what runs by itself?             (jobs.py)
    mirror                     what repositories follow         (mirrors.py)
    explain, upstream          why is it answered like that?    (explain.py)

There is one implementation of each command, the API's: `connection.py` finds a running server, or is one itself.
Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import logging
import sys

import click

from app.cli import artifacts, cluster, explain, installation, jobs, mirrors, people, processes, repositories, roles, upkeep
from app.cli.connection import Failed, Target


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=processes.show_version, help="Show the version and exit."
)
@click.option("--url", metavar="URL", help="Server to use, instead of the one of the data directory or ARKVORY_URL.")
@click.option("--token", metavar="TOKEN", help="Token to use there, instead of ARKVORY_TOKEN.")
@click.pass_context
def arkvory(context: click.Context, url: str | None, token: str | None) -> None:
    """Arkvory, an artifact repository server."""
    context.obj = Target(url, token)


ROOMS = (processes, repositories, artifacts, people, roles, installation, upkeep, cluster, jobs, explain, mirrors)
for command in (each for room in ROOMS for each in room.COMMANDS):
    arkvory.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """Entry of `arkvory`; ends the process with 0, 1 (it was refused or failed) or 2 (wrong use)."""
    from config.settings import SettingError

    # A command ends with its one line about that.
    logging.getLogger("app.database.outage").addHandler(logging.NullHandler())
    try:
        arkvory.main(arguments, prog_name="arkvory", standalone_mode=False)
    except click.Abort:
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except SettingError as error:
        click.echo(f"arkvory: {error}", err=True)
        sys.exit(2)
    except Failed as error:
        click.echo(f"arkvory: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # `arkvory ... | head` has seen enough.
        sys.stderr.close()
        sys.exit(0)
